"""ClusterSimulator: three to five whole brokers in one thread, over a network, disks and a clock that obey a seed.

    sim = ClusterSimulator(seed=7, brokers=3)
    sim.start_all()
    pending = sim.send(1, ApiKey.METADATA, 9, {"topics": None})
    sim.run(100)                    # virtual milliseconds; pending.body holds the answer, if there was one
    sim.net.cut(1, 2, one_way=True) # every fault of `FakeNet`; those of `FakeDisk` by sim.machines[1].disk
    sim.crash(1)                    # the power goes: any subset of what was not synced is lost
    sim.kill(2)                     # only the process dies: the page cache survives
    sim.stop(3)                     # it stops by itself, in a while
    sim.start(1)
    sim.pause(3); sim.resume(3)     # as SIGSTOP and SIGCONT do
    sim.bucket.is_away = True       # with `has_store`: every fault of `FakeBucket`, `FakeStore` by sim.lives[1].store

Every process has a loop of its own, and the seed decides whose turn is next: so one can stand still, or end in the
middle of anything, while the others go on. Requests enter as frames and answers leave as frames. An exception that
nobody handles, or a line in the log that calls itself a defect, ends the run with SimulationError. The same seed gives
the same run. `cluster_workload` makes random runs of it.
"""

import asyncio
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Self
from unittest.mock import patch

from anabranch.broker.branch.partition import BranchPartition
from anabranch.broker.broker import Broker
from anabranch.broker.metadata import metadata_log
from anabranch.broker.peers.messages import LeaderRow
from anabranch.broker.ring.driver import ring_driver
from anabranch.broker.topics.partition import Partition
from anabranch.broker.write.sync_place import PROOF_MIN
from anabranch.cluster.metadata.residence import BRANCHED
from anabranch.config import NodeSettings
from anabranch.errors import StorageError
from anabranch.record.batch import batch_spans, read_header
from anabranch.testing.fakes.clock import FakeClock
from anabranch.testing.fakes.disk import FakeDisk, PowerLoss
from anabranch.testing.fakes.loop import SimWorkers, VirtualLoop
from anabranch.testing.fakes.net import FakeNet, FaultPlan
from anabranch.testing.fakes.store import NO_FAULTS, FakeBucket, FakeStore, StoreFaults
from anabranch.testing.in_process_client import Body, InProcessClient, Pending
from anabranch.testing.simulation.simulator import DATA_DIR, SMALL, Defects, SimulationError
from anabranch.values import BrokerId, Offset, TopicPartition
from anabranch.wire.api_keys import ApiKey

SETTLE_MS_MAX = 30_000
SLICE_MS = 20
TURNS_MAX = 50_000
"""Within one millisecond."""
READ_BYTES = 2**20
STORE_URL = "file:///simulated"
"""Nobody opens it: there is a `FakeStore` for every process."""

Generations = dict[tuple[uuid.UUID, int, int], int]
"""Who led a partition in a generation."""


@dataclass
class Machine:
    """What outlives a process."""

    broker_id: int
    disk: FakeDisk = field(default_factory=FakeDisk)
    shelved: FakeDisk | None = None
    """The disk that it had before this one."""
    boots: int = 0
    lives: int = 0
    has_joined: bool = False
    life: "Life | None" = None


class Life:
    """One process of one broker, from its start to its end."""

    def __init__(self, sim: "ClusterSimulator", machine: Machine, settings: NodeSettings) -> None:
        self.machine = machine
        self.number = machine.lives
        self.rng = Random(sim.rng.getrandbits(64))
        self.is_over = False
        self.is_paused = False
        self.is_ready = False
        """It listens to clients."""
        self._sim = sim
        self._disk = machine.disk
        self.loop = VirtualLoop(sim.clock, lambda: False)
        self.loop.set_exception_handler(sim.defects.unhandled)
        self.workers = SimWorkers(self.loop, self.rng)
        me = BrokerId(machine.broker_id)
        self.peers = sim.net.peers(me, self.loop, lambda: self.is_dead)
        self.store: FakeStore | None = None
        if sim.bucket is not None:
            self.store = FakeStore(sim.bucket, self.rng, sim.store_faults)
        self._settings = settings
        self._asked: dict[Pending, None] = {}
        self._stopping: asyncio.Task[None] | None = None
        self._applied_end = 0
        self._high_watermarks: dict[Partition, int] = {}

    @property
    def is_dead(self) -> bool:
        return self.is_over or self._disk.is_dark

    def open(self) -> None:
        """Raises PowerLoss, StorageError."""
        boot = f"boot-{self.machine.boots}"
        self.broker = Broker(
            self._settings, self._sim.clock, self._disk, self.workers, DATA_DIR, boot, self.peers, self.store
        )
        self.broker.open()
        if self.rng.random() < 0.5:  # What others find out late: that syncs may run on the loop.
            for _ in range(PROOF_MIN):
                self.broker.core.syncer.place.note(0, here=False)
        assert self.broker.peering is not None
        self._watch_leaders()
        self.broker.start()
        self.peers.start(self.broker.peering)
        self.client = InProcessClient(self.broker, is_cut=lambda: self.is_dead)
        self._joining = self.loop.create_task(self._join())

    async def _join(self) -> None:
        assert self.broker.peering is not None
        await self.broker.peering.join()
        self.is_ready = self.machine.has_joined = True

    def stop(self) -> None:
        """As a node does that is asked to; `has_stopped` says when it is done."""
        self._stopping = self._stopping or self.loop.create_task(self._stop())

    async def _stop(self) -> None:
        assert self.broker.peering is not None
        if self.broker.objects is not None:
            await self.broker.objects.leave()
        await self.broker.peering.leave()
        self.is_ready = False
        self._joining.cancel()
        await self.broker.drain()
        await self.peers.close()
        await self.broker.close()

    @property
    def has_stopped(self) -> bool:
        return self._stopping is not None and self._stopping.done()

    def _watch_leaders(self) -> None:
        assert self.broker.replicas is not None
        replicas, sim, me = self.broker.replicas, self._sim, self.machine.broker_id
        forward = replicas.on_leads

        def on_leads(partition: Partition, row: LeaderRow | None) -> None:
            if row is not None and not self.is_dead:
                sim.led(me, partition, row)
            forward(partition, row)

        replicas.on_leads = on_leads

    @property
    def needs_restart(self) -> bool:
        """It is about to stop, or does not believe its disk any more and says so in its log."""
        return (
            self._stopping is not None
            or self.broker.metadata._ended_because is not None
            or (self.broker.branches is not None and self.broker.branches.tube.is_fenced)
            or any(_is_fenced(partition) for partition in self.broker.partitions())
        )

    def check(self) -> None:
        """What readers may see, and what was agreed on, only grows while a process lives."""
        applied_end = self.broker.metadata.applied_end
        if applied_end < self._applied_end:
            raise SimulationError(
                f"broker {self.machine.broker_id} knows less than before: {applied_end} and not {self._applied_end}"
            )
        self._applied_end = applied_end
        for partition in (*self.broker.topics.partitions(), *self.broker.topics.object_partitions()):
            before = self._high_watermarks.get(partition, 0)
            if partition.high_watermark < before:
                raise SimulationError(
                    f"the high watermark of {partition.id} on broker {self.machine.broker_id} went back from "
                    f"{before} to {partition.high_watermark}"
                )
            self._high_watermarks[partition] = partition.high_watermark

    # --- clients -------------------------------------------------------------------------------------------------

    def send(self, request: Pending, body: Body) -> None:
        self._asked[request] = None
        self.loop.call_soon(self._ask, request, body)

    def _ask(self, request: Pending, body: Body) -> None:
        if request.is_settled:
            return  # The client has gone away before this was read.

        def settled(pending: Pending) -> None:
            self._asked.pop(request, None)
            self._sim.world.call_soon(request.settle, pending.body, pending.closed_because)

        pending = self.client.send(request.api, request.version, body)
        if pending.is_settled:
            settled(pending)
        else:
            pending.on_settled = settled

    # --- the end -------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Nothing it still does reaches the disk, a peer or a client."""
        self.is_over = True
        self._disk.crash_at = self._disk.operations
        self.loop.set_exception_handler(lambda loop, context: None)
        while rest := asyncio.all_tasks(self.loop):  # Some begin another in their last moment.
            for task in rest:
                task.cancel()
            self.loop.run_for(0)
        self.loop.close()
        if self._stopping is not None and not self._stopping.cancelled():
            error = self._stopping.exception()
            if error is not None and not isinstance(error, PowerLoss):
                raise error
        for request in self._asked:
            self._sim.world.call_soon(request.settle, None, "the connection was closed")


class ClusterSimulator:
    def __init__(
        self,
        seed: int,
        brokers: int = 3,
        *,
        flush: str = "always",
        settings: Mapping[str, object] | None = None,
        plan: FaultPlan | None = None,
        has_store: bool = False,
        entries_per_snapshot: int = metadata_log.ENTRIES_PER_SNAPSHOT,
    ) -> None:
        """`has_store`: there is an object store beside them, so that topics may be in it."""
        self.seed = seed
        self.rng = Random(seed)
        self.clock = FakeClock()
        self.trace: list[str] = []
        self.flush = flush
        self.world = VirtualLoop(self.clock, lambda: False)
        """The loop of the network and of the clients."""
        self._acts: Life | None = None
        self.defects = Defects(lambda: self._acts is not None and self._acts.is_dead)
        self.world.set_exception_handler(self.defects.unhandled)
        self.net = FakeNet(self.world, self.clock, Random(self.rng.getrandbits(64)), plan)
        self.machines = {number: Machine(number) for number in range(1, brokers + 1)}
        self.leaders: Generations = {}
        self.bucket = FakeBucket(self.clock) if has_store else None
        self.store_faults = NO_FAULTS
        self._entries_per_snapshot = entries_per_snapshot
        self._settings = {**({"object.store": STORE_URL} if has_store else {}), **(settings or {})}
        self._turns = 0

    def note(self, line: str) -> None:
        """Add a line to the trace."""
        self.trace.append(f"{self.clock.monotonic_ms():>7} {line}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the simulation."""
        with self._acting():
            for machine in self.machines.values():
                if machine.life is not None:
                    self._end(machine, machine.life)
        self.world.close()

    # --- life and death ------------------------------------------------------------------------------------------

    @property
    def lives(self) -> dict[int, Life]:
        """Those that run, paused or not."""
        return {number: each.life for number, each in self.machines.items() if each.life is not None}

    def broker(self, broker_id: int) -> Broker:
        return self.lives[broker_id].broker

    def add(self, broker_id: int) -> None:
        """One more machine, which is off."""
        self.machines[broker_id] = Machine(broker_id)

    def start_all(self) -> None:
        """The first founds the cluster, the others join it; all is well when this returns."""
        for number in self.machines:
            self.start(number)
            self.run_until(lambda: all(life.is_ready for life in self.lives.values()))
        self.run_until(self.is_settled)

    def start(self, broker_id: int) -> bool:
        """Begin a life on what the disk holds; False if the power went again while it recovered."""
        machine = self.machines[broker_id]
        assert machine.life is None, "it runs"
        machine.disk.capacity_bytes = None  # One that cannot even open its logs does not start.
        machine.lives += 1
        life = Life(self, machine, self._settings_of(machine))
        machine.life = life
        try:
            with self._acting(), self._by(life):
                life.open()
        except PowerLoss:
            self.note(f"the power of {broker_id} goes during recovery")
            self.crash(broker_id)
            return False
        except StorageError as error:
            raise SimulationError(f"broker {broker_id} does not start on a whole disk: {error}") from error
        self.note(f"life {machine.lives} of {broker_id} begins")
        return True

    def _settings_of(self, machine: Machine) -> NodeSettings:
        host, port = self.net.address(BrokerId(machine.broker_id))
        others = [
            "{}:{}".format(*self.net.address(BrokerId(each)))
            for each in self.machines
            if each != machine.broker_id
        ]
        is_founder = machine.broker_id == 1 and not machine.has_joined
        return NodeSettings.load(
            {
                **SMALL,
                "flush": self.flush,
                "data.dir": DATA_DIR,
                "broker.id": machine.broker_id,
                "listen": f"127.0.0.1:{9000 + machine.broker_id}",
                "peer.listen": f"{host}:{port}",
                "peer.join": "" if is_founder else ",".join(others),
                "cluster.secret.file": "secret",  # Nobody reads it: there are no sockets.
                **self._settings,
            }
        )

    def crash(self, broker_id: int) -> None:
        """Cut the power."""
        machine = self.machines[broker_id]
        if machine.life is not None:
            self.note(f"the power of {broker_id} goes")
            self._end(machine, machine.life, is_noticed=False)
        machine.disk.crash(self.rng)
        machine.boots += 1

    def kill(self, broker_id: int) -> None:
        """End the process: what was written is still in the page cache."""
        machine = self.machines[broker_id]
        assert machine.life is not None, "it does not run"
        self.note(f"{broker_id} is killed")
        self._end(machine, machine.life)
        machine.disk.forget_faults()
        machine.disk.kill()

    def stop(self, broker_id: int) -> None:
        """Ask the process to stop, which takes its time."""
        self.note(f"{broker_id} is asked to stop")
        self.lives[broker_id].stop()

    def wipe(self, broker_id: int) -> None:
        """Of a broker that does not run: another disk, with nothing on it."""
        machine = self.machines[broker_id]
        assert machine.life is None, "it runs"
        self.note(f"{broker_id} loses its disk")
        machine.disk, machine.shelved = FakeDisk(), machine.disk
        machine.boots += 1

    def put_back(self, broker_id: int) -> None:
        """Of a broker that does not run: the disk that it had before, as it was then."""
        machine = self.machines[broker_id]
        assert machine.life is None, "it runs"
        assert machine.shelved is not None, "it has lost none"
        self.note(f"{broker_id} gets its old disk back")
        machine.disk, machine.shelved = machine.shelved, machine.disk
        machine.boots += 1

    def _end(self, machine: Machine, life: Life, *, is_noticed: bool = True) -> None:
        machine.life = None
        with self._acting(), self._of(life):
            life.end()
        with self._acting(), self.world.running():
            self.net.crash(BrokerId(machine.broker_id), is_noticed=is_noticed)

    def pause(self, broker_id: int) -> None:
        """It stands still, and so do its links: nobody can tell it from one that is cut off."""
        self.note(f"{broker_id} stands still")
        self.lives[broker_id].is_paused = True
        self.net.pause(BrokerId(broker_id))

    def resume(self, broker_id: int) -> None:
        life = self.lives[broker_id]
        if life.is_paused:
            self.note(f"{broker_id} goes on")
            life.is_paused = False
            self.net.resume(BrokerId(broker_id))

    def spoil_store(self, faults: StoreFaults) -> None:
        """From now on, for everybody who runs or will."""
        self.store_faults = faults
        for life in self.lives.values():
            if life.store is not None:
                life.store.faults = faults

    # --- time ----------------------------------------------------------------------------------------------------

    def run(self, milliseconds: int) -> None:
        """Let time pass. Brokers whose disk was told to go dark (`disk.crash_at`) and did are off afterwards."""
        end_ms = self.clock.monotonic_ms() + milliseconds
        with self._acting():
            self._turns = 0
            while self._turn(end_ms):
                self._turns += 1
                if self._turns > TURNS_MAX:
                    raise SimulationError("everybody is busy, and no time passes")
        for life in self.lives.values():
            life.check()

    def run_until(self, is_so: Callable[[], object], milliseconds_max: int = SETTLE_MS_MAX) -> None:
        end_ms = self.clock.monotonic_ms() + milliseconds_max
        while not is_so():
            if self.clock.monotonic_ms() >= end_ms:
                raise SimulationError(f"it did not come about within {milliseconds_max} ms")
            self.run(SLICE_MS)

    def _turn(self, end_ms: int) -> bool:
        """Let somebody do what is due, or time pass until something is; False: the end has come."""
        now_ms = self.clock.monotonic_ms()
        due: list[Life | None] = []
        next_ms = end_ms
        if (world_ms := self.world.due_ms) is not None:
            if world_ms <= now_ms:
                due.append(None)
            else:
                next_ms = min(next_ms, world_ms)
        for machine in self.machines.values():  # Not `lives`: this runs thousands of times for one seed.
            life = machine.life
            if life is None or life.is_paused or (due_ms := life.loop.due_ms) is None:
                continue
            if due_ms <= now_ms:
                due.append(life)
            elif due_ms < next_ms:
                next_ms = due_ms
        if due:
            self._act(self.rng.choice(due))
            return True
        self._turns = 0
        self.clock.advance(next_ms - now_ms)
        return next_ms < end_ms

    def _act(self, life: Life | None) -> None:
        if life is None:
            self.world.turn()
        else:
            before, self._acts = (
                self._acts,
                life,
            )  # As `_of` does; a context manager costs as much as a short turn.
            try:
                life.loop.turn()
            finally:
                self._acts = before
        self.defects.check()
        if life is not None and life.is_dead:
            self.crash(life.machine.broker_id)
        elif life is not None and life.has_stopped:
            self.note(f"{life.machine.broker_id} has stopped")
            self._end(life.machine, life)
            life.machine.disk.forget_faults()
            life.machine.disk.kill()

    @contextmanager
    def _of(self, life: Life) -> Iterator[None]:
        before, self._acts = self._acts, life
        try:
            yield
        finally:
            self._acts = before

    @contextmanager
    def _by(self, life: Life) -> Iterator[None]:
        with self._of(life), life.loop.running():
            yield

    @contextmanager
    def _acting(self) -> Iterator[None]:
        """Ids come from the seed and defects are noticed while anybody acts."""
        ids = patch.object(uuid, "uuid4", self._uuid4)
        often = patch.object(metadata_log, "ENTRIES_PER_SNAPSHOT", self._entries_per_snapshot)
        with ids, often, self.defects.watching():
            yield
        self.defects.check()

    def _uuid4(self) -> uuid.UUID:
        rng = self._acts.rng if self._acts is not None else self.rng
        return uuid.UUID(int=rng.getrandbits(128), version=4)

    # --- looking -------------------------------------------------------------------------------------------------

    def led(self, broker_id: int, partition: Partition, row: LeaderRow) -> None:
        """A broker begins to lead a partition."""
        key = (row.topic_id, row.partition, row.generation)
        if self.leaders.setdefault(key, broker_id) != broker_id:
            raise SimulationError(
                f"generation {row.generation} of {partition.id} was led by {self.leaders[key]} and by {broker_id}"
            )
        self.note(
            f"{broker_id} leads {partition.id} view {row.view} generation {row.generation} {row.in_sync}"
        )

    def is_settled(self) -> bool:
        """All that run are known to all as running, and as many vote as should."""
        return not self.unsettled()

    def unsettled(self) -> str:
        """What keeps the brokers that run from being one cluster."""
        lives = self.lives
        joining = [number for number, life in lives.items() if not life.is_ready]
        leaders = [life.broker for life in lives.values() if life.broker.metadata.is_leader]
        if joining or len(leaders) != 1:
            return f"{joining} have not joined, {[each.id for each in leaders]} lead the quorum"
        voters = {member.broker_id for member in leaders[0].metadata.members.voters}
        if len(voters) != (1 if len(lives) < 3 else 3) or not voters <= lives.keys():
            return f"{voters} vote"
        fenced = {number: sorted(lives.keys() - _unfenced(life.broker)) for number, life in lives.items()}
        return f"some know others as fenced: {fenced}" if any(fenced.values()) else ""

    def replicas(self) -> dict[TopicPartition, dict[int, Partition]]:
        """Every partition of a topic, wherever it is kept now, by broker; those in branch mode are open everywhere, and
        `branch_copies` looks at them."""
        found: dict[TopicPartition, dict[int, Partition]] = {}
        for number, life in self.lives.items():
            for partition in life.broker.topics.partitions():
                if partition.residence != BRANCHED:
                    found.setdefault(partition.id, {})[number] = partition
        return found

    def leads(self, life: Life, place: tuple[str, int]) -> bool:
        """Whether it writes that partition now."""
        wanted = TopicPartition(*place)
        return any(each.id == wanted and each.is_leader for each in life.broker.topics.partitions())

    def is_whole(self) -> bool:
        """Everybody runs, and every copy has everything."""
        return not self.missing()

    def missing(self) -> str:
        """What keeps the cluster from being whole."""
        if len(self.lives) < len(self.machines) or not self.is_settled():
            return self.unsettled() or f"only {list(self.lives)} run"
        ends = {number: life.broker.metadata.applied_end for number, life in self.lives.items()}
        if len(set(ends.values())) != 1:
            return f"some know less than others: {ends}"
        if unequal := self._unequal_objects():
            return unequal
        return "; ".join(filter(None, (self._missing_of(*each) for each in self.replicas().items())))

    def _missing_of(self, partition_id: TopicPartition, kept: dict[int, Partition]) -> str:
        table = next(iter(self.lives.values())).broker.metadata.table
        placement = table.placement(table.topics[partition_id.topic], partition_id.partition)
        if placement.target is not None or kept.keys() != set(placement.replicas):
            return f"{partition_id} is kept by {list(kept)} and should be by {placement}"
        copies = list(kept.values())
        rings = [ring.mode for each in copies if (ring := ring_driver(each)) is not None]
        if (
            sum(each.is_leader for each in copies) == 1
            and len({each.log.end_offset for each in copies}) == 1
            and len({each.high_watermark for each in copies}) == 1
            and all(ring.view == placement.view and ring.replica.kept.is_trusted for ring in rings)
        ):
            return ""
        return f"{partition_id}: {[partition.mode.describe() for partition in copies]}"

    def _unequal_objects(self) -> str:
        ends = {
            number: {each.id: each.high_watermark for each in life.broker.topics.object_partitions()}
            for number, life in self.lives.items()
        }
        first = next(iter(ends.values()))
        return "" if all(each == first for each in ends.values()) else f"some show less than others: {ends}"

    def check_equal(self, cuts: Mapping[str, int] | None = None) -> None:
        """All brokers know the same, and all copies have the same bytes. `cuts`: below which somebody has asked to
        remove what there is of a topic; a copy that came back later may have a part of that."""
        tables = {number: life.broker.metadata.table.snapshot() for number, life in self.lives.items()}
        first = next(iter(tables))
        for number, table in tables.items():
            if table != tables[first]:
                raise SimulationError(f"the tables differ: {first} has {tables[first]}, {number} has {table}")
        for partition_id, kept in self.replicas().items():
            cut = Offset((cuts or {}).get(partition_id.topic, 0))
            start = max(cut, *(partition.log.start_offset for partition in kept.values()))
            contents = {number: contents_of(partition, start) for number, partition in kept.items()}
            if len(set(contents.values())) != 1:
                sizes = {number: len(data) for number, data in contents.items()}
                raise SimulationError(f"the copies of {partition_id} differ; their bytes: {sizes}")

    # --- requests ------------------------------------------------------------------------------------------------

    def send(self, broker_id: int, api: ApiKey, version: int, body: Body, timeout_ms: int = 0) -> Pending:
        """Hand in any request; its answer comes while `run` runs, or never within `timeout_ms`."""
        request = Pending(api, version)
        life = self.lives.get(broker_id)
        if life is None or not life.is_ready:
            self.world.call_soon(request.settle, None, "nobody listens")
            return request
        life.send(request, body)
        if timeout_ms:
            self.world.call_later(timeout_ms / 1000, request.settle, None, "no answer came in time")
        return request


def _is_fenced(partition: Partition) -> bool:
    if isinstance(partition, BranchPartition):
        return any(log.fenced for log in partition.lanes.logs())
    ring = ring_driver(partition)
    return partition.log.fenced or (ring is not None and ring.mode.is_fenced)


def contents_of(partition: Partition, start: Offset) -> bytes:
    """The bytes of a log from an offset on, whatever readers may see of it."""
    log, found = partition.log, []
    while start < log.end_offset:
        piece = log.slice(start, READ_BYTES, log.end_offset)
        data = bytes(piece.read())
        if not data:
            break
        found.append(data)
        *_, last = batch_spans(data)
        start = read_header(data[last[0] : last[1]]).next_offset
    return b"".join(found)


def _unfenced(broker: Broker) -> set[int]:
    return {number for number, row in broker.metadata.table.brokers.items() if not row.is_fenced}
