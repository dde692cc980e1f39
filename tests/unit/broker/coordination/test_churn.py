"""Ten members that join, leave, crash and commit while the coordinator restarts, or loses the group and gets it back.

In every history: no partition has two owners in one generation; no acknowledged commit is lost; what is read
back from the log is what was there; and once the churn ends the group settles, with every partition owned
once. One seed is one history.
"""

import asyncio
import random
from typing import Any

import pytest

from anabranch.broker.coordination.groups.coordinator import GroupCoordinator
from anabranch.broker.coordination.groups.shard import Shard
from anabranch.coordination.groups.group_base import GroupState
from anabranch.coordination.groups.messages import (
    CommitRequest,
    Identity,
    JoinAnswer,
    PartitionCommit,
    SyncRequest,
)
from anabranch.errors import (
    AnabranchError,
    FencedInstanceError,
    MemberIdRequiredError,
    StorageError,
    UnknownMemberIdError,
)
from anabranch.values import Generation, TopicPartition
from support.coordinator_bench import FakeLog, Node, turn
from support.group_bench import join_request

PARTITIONS = 12
STEPS = 250
ACTIONS = {
    "heartbeat": 30,
    "commit": 12,
    "crash": 4,
    "leave": 3,
    "time": 30,
    "hold": 4,
    "open": 12,
    "restart": 1,
}
MOVES = {"give up": 4, "take over": 12}


class Consumer:
    """A client as clients are: joins, syncs, works, and starts over when told so."""

    def __init__(self, world: "World", name: str, instance_id: str | None) -> None:
        self.world, self.name, self.instance_id = world, name, instance_id
        self.member_id = ""
        self.generation = -1
        self.owned: set[int] = set()
        self.task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        if self.task is None or self.task.done():
            self.task = asyncio.create_task(self._join_until_it_works())

    def crash(self) -> None:
        if self.task is not None:
            self.task.cancel()
        self.task, self.member_id, self.generation, self.owned = None, "", -1, set()

    def heartbeat(self) -> None:
        if self.generation < 0:
            self.begin()
            return
        try:
            self.world.groups.heartbeat("g", self.member_id, self.generation, self.instance_id)
        except AnabranchError as error:
            self._start_over(error)
            self.begin()

    async def commit(self) -> None:
        for partition in sorted(self.owned):
            self.world.commits += 1
            offset = self.world.commits
            one = PartitionCommit("orders", partition, offset)
            request = CommitRequest("g", (one,), self.member_id, self.generation, self.instance_id)
            if await self.world.groups.commit(request) == [None]:
                self.world.acknowledged[partition] = offset

    async def _join_until_it_works(self) -> None:
        self.owned, self.generation = set(), -1
        for _ in range(50):
            try:
                await self._join_and_sync()
                return
            except AnabranchError as error:
                self._start_over(error)
                await asyncio.sleep(0)

    async def _join_and_sync(self) -> None:
        request = join_request(self.member_id, instance_id=self.instance_id, version=9)
        answer = await self.world.groups.join(request)
        self.member_id = answer.member_id
        given = _assign(answer) if answer.members and not answer.skip_assignment else ()
        sync = SyncRequest("g", self.member_id, answer.generation, self.instance_id, assignments=given)
        assignment = (await self.world.groups.sync(sync)).assignment
        self.generation, self.owned = answer.generation, set(assignment)
        self.world.own(self)

    def _start_over(self, error: AnabranchError) -> None:
        self.owned, self.generation = set(), -1
        if isinstance(error, MemberIdRequiredError):
            self.member_id = error.member_id
        elif isinstance(error, UnknownMemberIdError | FencedInstanceError):
            self.member_id = ""


def _assign(answer: JoinAnswer) -> tuple[tuple[str, bytes], ...]:
    ids = [member.member_id for member in answer.members]
    return tuple((one, bytes(range(index, PARTITIONS, len(ids)))) for index, one in enumerate(ids))


class World:
    def __init__(self, seed: int, actions: dict[str, int]) -> None:
        self.rng = random.Random(seed)
        self.actions = actions
        self.log = FakeLog()
        self.node = Node(self.log)
        self.starts = 1
        self.commits = 0
        self.acknowledged: dict[int, int] = {}
        self.owners: dict[tuple[int, int], str] = {}
        self.consumers = [Consumer(self, f"c{n}", f"static-{n}" if n < 3 else None) for n in range(10)]
        self.background: set[asyncio.Task[None]] = set()

    @property
    def groups(self) -> GroupCoordinator:
        return self.node.groups

    def own(self, consumer: Consumer) -> None:
        who = consumer.instance_id or consumer.member_id
        for partition in consumer.owned:
            owner = self.owners.setdefault((consumer.generation, partition), who)
            assert owner == who, f"partition {partition} of generation {consumer.generation} has two owners"

    def commit(self, consumer: Consumer) -> None:
        task = asyncio.create_task(consumer.commit())
        self.background.add(task)

    def restart(self) -> None:
        """The process dies: whatever is not in the log is gone, whoever waits hears nothing any more."""
        for consumer in self.consumers:
            if consumer.task is not None:
                consumer.task.cancel()
        for task in self.background:
            task.cancel()
        records = list(self.log.records)
        self.log = FakeLog()
        self.log.records = records
        self.starts += 1
        clock = self.node.clock
        self.node = Node(self.log, first_id=self.starts * 1_000_000)
        self.node.clock.jump_wall(clock.wall_ms() - self.node.clock.wall_ms())

    @property
    def is_coordinated(self) -> bool:
        return self.groups.shard(0) is not None

    async def disturb(self, action: str) -> None:
        if action == "hold":
            self.log.hold()
        elif action == "open":
            self.log.open()
        elif action == "restart":
            self.restart()
        elif action == "give up":
            self.groups.give_up(0)
        elif action == "take over":
            await self.take_over()

    async def take_over(self) -> None:
        """What the last leadership handed to the log ends first, one way or the other; then the log is read."""
        if self.is_coordinated:
            return
        self.log.open()
        await turn()
        self.starts += 1
        shard = self.groups.take_over(0, Generation(self.starts))
        for record in self.log.records:
            self.groups.replay(shard, *record)
        for _ in range(self.rng.randrange(4)):
            await asyncio.sleep(0)
        self.groups.loaded(shard)

    async def collect(self) -> None:
        """Refusals are a part of life, defects are not."""
        for task in [task for task in self.background if task.done()]:
            self.background.discard(task)
            error = None if task.cancelled() else task.exception()
            assert error is None or isinstance(error, AnabranchError)
        for consumer in self.consumers:
            if consumer.task is not None and consumer.task.done() and not consumer.task.cancelled():
                consumer.task.result()

    def check_commits(self) -> None:
        if not self.is_coordinated:
            return
        committed = self.groups.fetch("g")
        for partition, offset in self.acknowledged.items():
            assert committed[TopicPartition("orders", partition)].offset >= offset

    async def check_replay(self) -> None:
        self.log.open()
        await turn()
        if not self.is_coordinated or shard_of(self.groups).lanes:
            return
        live, replayed = snapshot(self.groups), snapshot(Node(self.log).groups)
        group = shard_of(self.groups).table.groups.get("g")
        if group is not None and not group.is_in(GroupState.STABLE, GroupState.EMPTY):
            live, replayed = {"offsets": live["offsets"]}, {"offsets": replayed["offsets"]}
        assert live == replayed


def shard_of(groups: GroupCoordinator) -> Shard:
    shard = groups.shard(0)
    assert shard is not None
    return shard


def snapshot(groups: GroupCoordinator) -> dict[str, Any]:
    group = shard_of(groups).table.groups.get("g")
    seen: dict[str, Any] = {"offsets": groups.fetch("g")}
    if group is not None and group.is_stored:
        since_ms = group.state_timestamp_ms
        group.state_timestamp_ms = 0  # STABLE is written before it begins, so only this time may differ.
        record = group.to_record({m.member_id: m.assignment for m in group.roster.members.values()})
        group.state_timestamp_ms = since_ms
        seen |= {"state": group.state, "record": record}
        seen["empty_since"] = since_ms if group.is_in(GroupState.EMPTY) else None
    return seen


async def step(world: World) -> None:
    rng = world.rng
    consumer = rng.choice(world.consumers)
    action = rng.choices(list(world.actions), list(world.actions.values()))[0]
    if action == "heartbeat":
        consumer.heartbeat()
    elif action == "commit":
        world.commit(consumer)
    elif action == "crash":
        consumer.crash()
    elif action == "leave" and consumer.member_id and world.is_coordinated:
        identity = (
            Identity("", consumer.instance_id) if consumer.instance_id else Identity(consumer.member_id)
        )
        world.groups.leave("g", [identity])
        consumer.crash()
    elif action == "time":
        world.node.advance(rng.choice([1, 50, 100, 500, 3_000]))
    else:
        await world.disturb(action)
    for _ in range(rng.randrange(4)):
        await asyncio.sleep(0)


async def settle(world: World) -> None:
    """No more churn: everybody heartbeats until the group is at rest."""
    world.log.error = None
    world.log.open()
    await world.take_over()
    for _ in range(300):
        for consumer in world.consumers:
            consumer.heartbeat()
        await turn()
        world.node.advance(500)
        await world.collect()


async def history(seed: int, *, failures: bool, moves: bool = False) -> None:
    world = World(seed, ACTIONS | MOVES if moves else ACTIONS)
    for number in range(STEPS):
        await step(world)
        await world.collect()
        world.check_commits()
        if failures:
            world.log.error = StorageError("full") if world.rng.random() < 0.1 else None
        elif number % 10 == 0:
            await world.check_replay()
    await settle(world)
    owned = sorted(partition for consumer in world.consumers for partition in consumer.owned)
    assert owned == list(range(PARTITIONS))
    assert len({consumer.generation for consumer in world.consumers}) == 1
    assert len(world.owners) > PARTITIONS, "a history without a rebalance shows nothing"
    world.check_commits()
    await world.check_replay()


@pytest.mark.parametrize("seed", range(12))
def test_no_partition_has_two_owners_and_what_is_read_back_is_what_was_there(seed: int) -> None:
    asyncio.run(history(seed, failures=False))


@pytest.mark.parametrize("seed", range(100, 108))
def test_a_log_that_fails_at_times_gives_no_partition_two_owners_and_loses_no_commit(
    seed: int,
) -> None:
    asyncio.run(history(seed, failures=True))


@pytest.mark.parametrize("failures", [False, True])
@pytest.mark.parametrize("seed", range(200, 210))
def test_a_group_that_is_given_up_and_taken_over_again_and_again_loses_no_commit(
    seed: int, failures: bool
) -> None:
    asyncio.run(history(seed, failures=failures, moves=True))
