"""Groups are taken over and given up with the partition that keeps them, whatever they are doing."""

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from anabranch.broker.coordination.groups.coordinator import GroupCoordinator
from anabranch.broker.coordination.groups.shard import Shard
from anabranch.coordination.groups.messages import (
    CommitRequest,
    Identity,
    JoinAnswer,
    PartitionCommit,
    SyncRequest,
)
from anabranch.coordination.groups.settings import GroupSettings
from anabranch.errors import (
    CoordinatorLoadingError,
    IllegalGenerationError,
    MemberIdRequiredError,
    NotCoordinatorError,
    StorageError,
    UnknownMemberIdError,
)
from anabranch.testing.fakes.clock import FakeClock
from anabranch.values import Generation, TopicPartition
from support.coordinator_bench import FakeLog, turn
from support.group_bench import WALL_MS, join_request

ORDERS = TopicPartition("orders", 0)
DAY_MS = 86_400_000


def on_a_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        defects: list[Any] = []

        async def main() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _, context: defects.append(context))
            await asyncio.wait_for(test(), 10)

        asyncio.run(main())
        assert not defects, defects

    run.__name__ = test.__name__
    return run


class Coordinator:
    """One broker's coordinator. A group lies in the shard its first letter names: "a" in 0, "b" in 1, "g" in 6."""

    ids = itertools.count(1)

    def __init__(self, log: FakeLog, **settings: Any) -> None:
        self.log = log
        self.clock = FakeClock(WALL_MS)
        self.groups = GroupCoordinator(
            log.append,
            self.clock,
            GroupSettings(**settings),
            lambda: f"id{next(self.ids)}",
            lambda group_id: ord(group_id[0]) - ord("a"),
        )

    def take_over(self, index: int = 6, generation: int = 1) -> Shard:
        """Loaded at once; records of other shards are read too, for the log in memory is one."""
        shard = self.groups.take_over(index, Generation(generation))
        for record in self.log.records:
            self.groups.replay(shard, *record)
        self.groups.loaded(shard)
        return shard

    def advance(self, milliseconds: int) -> None:
        self.clock.advance(milliseconds)
        self.groups.tick(self.clock.monotonic_ms())

    def joining(self, group_id: str = "g", **changes: Any) -> "asyncio.Task[JoinAnswer]":
        return asyncio.create_task(self.groups.join(join_request(group_id=group_id, **changes)))

    async def joined(self, group_id: str = "g") -> JoinAnswer:
        joining = self.joining(group_id)
        await turn()
        self.advance(100)
        return await joining

    async def stable(self, group_id: str = "g") -> JoinAnswer:
        answer = await self.joined(group_id)
        assignments = ((answer.member_id, b"work"),)
        await self.groups.sync(
            SyncRequest(group_id, answer.member_id, answer.generation, assignments=assignments)
        )
        return answer

    async def commit(self, offset: int, group_id: str = "g", **changes: Any) -> None:
        one = PartitionCommit(*ORDERS, offset)
        assert await self.groups.commit(CommitRequest(group_id, (one,), **changes)) == [None]

    def offset(self, group_id: str = "g") -> int | None:
        committed = self.groups.fetch(group_id).get(ORDERS)
        return None if committed is None else committed.offset

    def groups_of_all_shards(self) -> list[str]:
        return [listed.group_id for listed in self.groups.list_groups()]


def commit_task(coordinator: Coordinator, offset: int) -> "asyncio.Task[None]":
    return asyncio.create_task(coordinator.commit(offset))


# --- whose group is it ------------------------------------------------------------------------------------


@on_a_loop
async def test_a_group_of_somebody_elses_partition_is_sent_away_by_every_request() -> None:
    one = Coordinator(FakeLog())
    one.take_over(0)
    with pytest.raises(NotCoordinatorError):
        await one.groups.join(join_request())
    with pytest.raises(NotCoordinatorError):
        await one.groups.sync(SyncRequest("g", "m", 1))
    with pytest.raises(NotCoordinatorError):
        one.groups.heartbeat("g", "m", 1)
    with pytest.raises(NotCoordinatorError):
        one.groups.leave("g", [Identity("m")])
    with pytest.raises(NotCoordinatorError):
        await one.commit(1)
    with pytest.raises(NotCoordinatorError):
        one.groups.fetch("g")
    with pytest.raises(NotCoordinatorError):
        await one.groups.delete_offsets("g", [ORDERS])
    with pytest.raises(NotCoordinatorError):
        one.groups.describe("g", 5)
    with pytest.raises(NotCoordinatorError):
        await one.groups.delete_group("g")
    assert one.log.appends == 0


@on_a_loop
async def test_a_partition_that_is_read_keeps_nobody_of_the_others_waiting() -> None:
    one = Coordinator(FakeLog())
    one.take_over(0)
    loading = one.groups.take_over(6, Generation(1))
    one.groups.heartbeat("g", "m", 1)
    with pytest.raises(CoordinatorLoadingError):
        await one.groups.join(join_request())
    with pytest.raises(CoordinatorLoadingError):
        one.groups.fetch("g")
    with pytest.raises(CoordinatorLoadingError):
        one.groups.list_groups()
    await one.commit(3, "another")
    assert one.offset("another") == 3
    one.groups.loaded(loading)
    assert one.offset() is None
    assert one.groups_of_all_shards() == ["another"]


@on_a_loop
async def test_only_groups_coordinated_here_are_listed_and_counted() -> None:
    one = Coordinator(FakeLog())
    for index, group_id in enumerate(("a", "b", "c")):
        one.take_over(index)
        await one.commit(index + 1, group_id)
    one.groups.give_up(1)
    assert one.groups_of_all_shards() == ["a", "c"]
    assert list(one.groups.committed()) == [("a", ORDERS, 1), ("c", ORDERS, 3)]


@on_a_loop
async def test_groups_of_another_number_of_partitions_are_passed_over() -> None:
    log = FakeLog()
    one = Coordinator(log)
    one.take_over(0)
    await one.commit(1, "a")
    one.take_over(1)
    assert one.groups_of_all_shards() == ["a"]


# --- giving up, in every state ----------------------------------------------------------------------------


@on_a_loop
async def test_who_waits_in_a_join_is_sent_to_the_new_coordinator() -> None:
    one = Coordinator(FakeLog())
    one.take_over()
    joining = [one.joining() for _ in range(3)]
    await turn()
    one.groups.give_up(6)
    for task in joining:
        with pytest.raises(NotCoordinatorError):
            await task
    assert one.groups.next_deadline_ms() is None


@on_a_loop
async def test_who_waits_for_an_assignment_is_sent_to_the_new_coordinator() -> None:
    one = Coordinator(FakeLog())
    one.take_over()
    joining = [one.joining(), one.joining()]
    await turn()
    one.advance(100)
    one.advance(100)
    answers = [await task for task in joining]
    follower = next(answer for answer in answers if answer.leader != answer.member_id)
    syncing = asyncio.create_task(one.groups.sync(SyncRequest("g", follower.member_id, follower.generation)))
    await turn()
    assert not syncing.done()
    one.groups.give_up(6)
    with pytest.raises(NotCoordinatorError):
        await syncing


@on_a_loop
async def test_an_assignment_on_its_way_to_the_log_is_not_handed_out() -> None:
    log = FakeLog()
    one, other = Coordinator(log), Coordinator(log)
    one.take_over()
    answer = await one.joined()
    log.hold()
    request = SyncRequest("g", answer.member_id, 1, assignments=((answer.member_id, b"work"),))
    syncing = asyncio.create_task(one.groups.sync(request))
    await turn()
    one.groups.give_up(6)
    with pytest.raises(NotCoordinatorError):
        await syncing
    log.open()
    await turn()
    other.take_over()
    assert other.groups.describe("g", 6).members[0].assignment == b"work"


def test_an_assignment_that_was_given_up_is_not_taken_for_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    @on_a_loop
    async def body() -> None:
        one = Coordinator(FakeLog())
        one.take_over()
        answer = await one.joined()
        one.log.hold()
        syncing = asyncio.create_task(one.groups.sync(SyncRequest("g", answer.member_id, 1)))
        await turn()
        one.groups.give_up(6)
        with pytest.raises(NotCoordinatorError):
            await syncing

    body()
    assert not caplog.records


@on_a_loop
async def test_a_stable_group_goes_on_where_it_is_taken_over() -> None:
    log = FakeLog()
    one, other = Coordinator(log), Coordinator(log)
    one.take_over()
    answer = await one.stable()
    await one.commit(7, member_id=answer.member_id, generation=1)
    one.groups.give_up(6)
    other.take_over(generation=2)
    with pytest.raises(NotCoordinatorError):
        one.groups.heartbeat("g", answer.member_id, 1)
    other.groups.heartbeat("g", answer.member_id, 1)
    assert other.offset() == 7
    await other.commit(8, member_id=answer.member_id, generation=1)
    assert other.offset() == 8


@on_a_loop
async def test_generations_go_on_from_the_stored_one() -> None:
    log = FakeLog()
    one, other = Coordinator(log), Coordinator(log)
    one.take_over()
    first = await one.stable()
    one.groups.give_up(6)
    other.take_over(generation=2)
    joining = other.joining(member_id=first.member_id)
    await turn()
    assert (await joining).generation == 2
    with pytest.raises(IllegalGenerationError):
        other.groups.heartbeat("g", first.member_id, 1)


@on_a_loop
async def test_a_generation_nobody_had_saved_is_unknown_to_the_next_coordinator() -> None:
    log = FakeLog()
    one, other = Coordinator(log), Coordinator(log)
    one.take_over()
    answer = await one.joined()
    one.groups.give_up(6)
    other.take_over(generation=2)
    with pytest.raises(UnknownMemberIdError):
        await other.groups.sync(SyncRequest("g", answer.member_id, answer.generation))


@on_a_loop
async def test_an_empty_group_keeps_its_offsets_where_it_is_taken_over() -> None:
    log = FakeLog()
    one, other = Coordinator(log), Coordinator(log)
    one.take_over()
    answer = await one.stable()
    await one.commit(7, member_id=answer.member_id, generation=1)
    one.groups.leave("g", [Identity(answer.member_id)])
    await turn()
    one.groups.give_up(6)
    other.take_over(generation=2)
    assert (other.groups.describe("g", 6).state, other.offset()) == ("Empty", 7)


@on_a_loop
async def test_a_group_being_deleted_is_given_up_and_the_log_decides() -> None:
    for is_kept in (False, True):
        log = FakeLog()
        one, other = Coordinator(log), Coordinator(log)
        one.take_over()
        await one.commit(7)
        log.error = StorageError("full") if is_kept else None
        log.hold()
        deleting = asyncio.create_task(one.groups.delete_group("g"))
        await turn()
        one.groups.give_up(6)
        with pytest.raises(NotCoordinatorError):
            await deleting
        log.open()
        await turn()
        log.error = None
        other.take_over(generation=2)
        assert other.offset() == (7 if is_kept else None)


@on_a_loop
async def test_a_member_that_was_given_an_id_only_is_forgotten() -> None:
    one = Coordinator(FakeLog())
    one.take_over()
    with pytest.raises(MemberIdRequiredError):
        await one.groups.join(join_request(version=4))
    one.groups.give_up(6)
    one.take_over(generation=2)
    assert one.groups_of_all_shards() == []
    one.advance(DAY_MS)


@on_a_loop
async def test_to_give_up_what_one_does_not_have_is_nothing() -> None:
    one = Coordinator(FakeLog())
    one.groups.give_up(6)
    one.take_over()
    one.groups.give_up(6)
    one.groups.give_up(6)


# --- commits that race ------------------------------------------------------------------------------------


@on_a_loop
async def test_a_commit_on_its_way_is_not_acknowledged_even_if_the_log_takes_it_later() -> None:
    log = FakeLog()
    one = Coordinator(log)
    one.take_over()
    await one.commit(5)
    log.hold()
    running = commit_task(one, 6)
    await turn()
    waiting = commit_task(one, 7)  # Behind the first in its lane: the log never hears of it.
    await turn()
    one.groups.give_up(6)
    for task in (running, waiting):
        with pytest.raises(NotCoordinatorError):
            await task
    log.open()
    await turn()
    one.take_over(generation=2)
    assert one.offset() == 6
    assert log.appends == 2


@on_a_loop
async def test_a_commit_whose_append_had_no_turn_yet_never_reaches_the_log() -> None:
    log = FakeLog()
    one = Coordinator(log)
    one.take_over()
    committing = commit_task(one, 5)
    await asyncio.sleep(0)  # The commit is in its lane, the lane's task has not run.
    assert log.appends == 0
    one.groups.give_up(6)
    one.take_over(generation=2)
    with pytest.raises(NotCoordinatorError):
        await committing
    await turn()
    assert (log.appends, one.offset()) == (0, None)


@on_a_loop
async def test_a_write_of_an_earlier_leadership_changes_nothing_in_a_later_one() -> None:
    log = FakeLog()
    one = Coordinator(log)
    one.take_over()
    log.hold()
    late = commit_task(one, 5)
    await turn()
    one.groups.give_up(6)
    shard = one.take_over(generation=2)
    log.open()
    await turn()
    assert late.done()
    assert isinstance(late.exception(), NotCoordinatorError)
    assert one.offset() is None
    assert not shard.lanes
    await one.commit(9)
    assert one.offset() == 9


@on_a_loop
async def test_a_client_that_hung_up_before_the_group_was_given_up_breaks_nothing() -> None:
    log = FakeLog()
    one = Coordinator(log)
    one.take_over()
    log.hold()
    tasks: list[asyncio.Task[Any]] = [one.joining(), commit_task(one, 5)]
    await turn()
    for task in tasks:
        task.cancel()
    await turn()
    one.groups.give_up(6)
    log.open()
    await turn()


# --- loads ------------------------------------------------------------------------------------------------


@on_a_loop
async def test_a_load_that_was_overtaken_leaves_nothing() -> None:
    log = FakeLog()
    writer = Coordinator(log)
    writer.take_over()
    await writer.commit(5)
    one = Coordinator(log)
    old = one.groups.take_over(6, Generation(1))
    one.groups.replay(old, *log.records[0])
    one.groups.give_up(6)
    with pytest.raises(NotCoordinatorError):
        one.groups.fetch("g")
    new = one.groups.take_over(6, Generation(2))
    one.groups.replay(old, *log.records[0])
    one.groups.loaded(new)
    assert one.offset() is None
    with pytest.raises(AssertionError, match="overtaken"):
        one.groups.loaded(old)


@on_a_loop
async def test_sessions_of_a_group_start_when_it_is_taken_over() -> None:
    log = FakeLog()
    one, other = Coordinator(log), Coordinator(log)
    one.take_over()
    answer = await one.stable()
    other.clock.advance(100_000)
    moved: list[int | None] = []
    other.groups.on_deadline_moved = lambda: moved.append(other.groups.next_deadline_ms())
    other.take_over(generation=2)
    assert moved
    assert other.groups.next_deadline_ms() == 110_000
    other.advance(9_999)
    other.groups.heartbeat("g", answer.member_id, 1)
    other.advance(10_000)
    await turn()
    assert other.groups.describe("g", 6).state == "Empty"


@on_a_loop
async def test_a_shard_without_members_still_has_offsets_that_expire_one_day() -> None:
    log = FakeLog()
    writer, one = Coordinator(log), Coordinator(log)
    writer.take_over()
    await writer.commit(5)
    moved: list[int | None] = []
    one.groups.on_deadline_moved = lambda: moved.append(one.groups.next_deadline_ms())
    one.take_over()
    assert moved == [600_000]


@on_a_loop
async def test_offsets_expire_where_their_group_is_coordinated_and_nowhere_else() -> None:
    log = FakeLog()
    one, other = Coordinator(log), Coordinator(log)
    one.take_over()
    other.take_over()
    await one.commit(5)
    one.groups.give_up(6)
    loading = one.groups.take_over(6, Generation(3))
    one.groups.replay(loading, *log.records[0])  # A deletion may be among the records to come.
    one.clock.advance(8 * DAY_MS)
    one.groups.tick(one.clock.monotonic_ms())
    await turn()
    assert log.appends == 1
    other.take_over(generation=4)
    other.advance(8 * DAY_MS)
    await turn()
    assert log.appends == 2
    assert other.groups_of_all_shards() == []


@on_a_loop
async def test_topics_are_forgotten_by_the_groups_that_are_here_and_the_rest_is_said() -> None:
    one = Coordinator(FakeLog())
    one.take_over(0)
    await one.commit(5, "a")
    await one.groups.forget_topics(["orders"])
    assert one.offset("a") is None
    await one.commit(6, "a")
    one.groups.take_over(1, Generation(1))
    with pytest.raises(CoordinatorLoadingError):
        await one.groups.forget_topics(["orders"])
    assert one.offset("a") is None
