"""OffsetsTopic: the `__consumer_offsets` log, where groups keep their offsets and members.

A group's records all go to one partition, chosen as Kafka chooses it, so that Kafka's tools find them, and the
leader of that partition coordinates the group. A node that is alone coordinates all of them and makes the topic
when the first group writes; in a cluster it is made when somebody asks who coordinates a group.

Whoever comes to lead a partition reads its log into the coordinator piece by piece, between requests, once all
that the log then holds is safe and nothing of an earlier leadership is on its way into it. A load ends early, and
leaves nothing, when the partition is given up meanwhile.
"""

import asyncio
import functools
import logging
from collections.abc import Iterable

from anabranch.broker.coordination.groups.coordinator import GroupCoordinator
from anabranch.broker.coordination.groups.coordinator_base import THE_ONLY_SHARD
from anabranch.broker.coordination.groups.shard import Shard
from anabranch.broker.metadata.metadata_log import read_records
from anabranch.broker.topics.partition import Partition
from anabranch.broker.topics.topics import OFFSETS_TOPIC, Topics, TopicState
from anabranch.broker.write.append_queue import NEVER_MS
from anabranch.broker.write.core import BrokerCore
from anabranch.coordination.groups.messages import LogRecord
from anabranch.errors import (
    AnabranchError,
    CoordinatorNotAvailableError,
    FencedGenerationError,
    NotCoordinatorError,
    NotOwnerError,
)
from anabranch.record.builder import BatchBuilder
from anabranch.values import Generation, Offset

logger = logging.getLogger(__name__)

RECORDS_PER_TURN = 500
NO_SHARD = -1
SAFE_LOOK_MS = 1_000
"""How often a load that waits for its log to be safe looks by itself; mostly the publish wakes it."""
APPEND_TIMEOUT_MS = 5_000
"""offsets.commit.timeout.ms: how long a cluster's followers may take before whoever asked is told to try again."""
_HASHES_KEPT_MAX = 10_000
_HASHED_CHARACTERS_MAX = 255
_MASKS_KEPT_MAX = 256
"""A longer name is hashed every time: what is kept stays small whatever clients send."""


class OffsetsTopic:
    def __init__(
        self,
        core: BrokerCore,
        topics: Topics,
        *,
        is_alone: bool = True,
    ) -> None:
        self._core = core
        self._topics = topics
        self._is_alone = is_alone
        self._coordinator: GroupCoordinator | None = None
        self._loads: dict[int, asyncio.Task[None]] = {}
        self._appends: dict[int, set[asyncio.Future[Offset]]] = {}
        self._reading = asyncio.Lock()
        self._replayed_total = 0
        self.failed: set[int] = set()
        """Shards whose log could not be read: their groups are not served until somebody else leads them, or
        the next start."""

    # --- where a group lies ----------------------------------------------------------------------------------

    def shard_of(self, group_id: str) -> int:
        """The partition whose leader coordinates this group; a node that is alone keeps all groups together."""
        if self._is_alone:
            return THE_ONLY_SHARD
        state = self._topics.find(OFFSETS_TOPIC)
        return NO_SHARD if state is None else index_of(group_id, state)

    async def made(self) -> TopicState:
        """The topic, made if nobody has used it before. Raises CoordinatorNotAvailableError."""
        try:
            return self._topics.find(OFFSETS_TOPIC) or await self._topics.create_on_use(OFFSETS_TOPIC)
        except AnabranchError as error:
            raise CoordinatorNotAvailableError(f"{OFFSETS_TOPIC} cannot be made: {error}") from error

    # --- writing ---------------------------------------------------------------------------------------------

    async def append(self, group_id: str, records: list[LogRecord]) -> None:
        """Durable when it returns. Raises CoordinatorNotAvailableError, which clients try again, or
        NotCoordinatorError, which sends them to whoever leads the partition now."""
        state = self._topics.find(OFFSETS_TOPIC) or await self.made()
        try:
            index = index_of(group_id, state)
            partition = self._topics.partition(OFFSETS_TOPIC, index)
            partition.check_writable()
            batch = self._batch(records)
            await self._noted(index, self._core.append(partition, batch, deadline_ms=self._deadline_ms()))
        except (NotOwnerError, FencedGenerationError) as error:
            raise NotCoordinatorError(f"Group {group_id} has another coordinator now: {error}") from error
        except AnabranchError as error:
            raise CoordinatorNotAvailableError(f"Offsets cannot be written: {error}") from error

    def _batch(self, records: list[LogRecord]) -> bytearray:
        builder = BatchBuilder()
        now_ms = self._core.clock.wall_ms()
        for key, value in records:
            builder.add(key, value, timestamp_ms=now_ms)
        return builder.build()

    def _deadline_ms(self) -> int:
        """A node that is alone waits for its own disk, however long that takes."""
        return NEVER_MS if self._is_alone else self._core.clock.monotonic_ms() + APPEND_TIMEOUT_MS

    def _noted(self, index: int, append: "asyncio.Future[Offset]") -> "asyncio.Future[Offset]":
        """A later leadership waits for what an earlier one handed to the log; a node that is alone has one only."""
        if self._is_alone:
            return append
        appends = self._appends.setdefault(index, set())
        appends.add(append)
        append.add_done_callback(appends.discard)
        return append

    # --- who coordinates -------------------------------------------------------------------------------------

    def attach(self, coordinator: GroupCoordinator) -> None:
        """This coordinator is told whenever leadership changes. A node that is alone leads everything at once."""
        self._coordinator = coordinator
        if self._is_alone:
            coordinator.take_over(THE_ONLY_SHARD, Generation(0))

    def start(self) -> None:
        """Begin to read what a node that is alone has; in a cluster leadership comes by `on_leadership`."""
        if self._is_alone:
            assert self._coordinator is not None
            shard = self._coordinator.shard(THE_ONLY_SHARD)
            assert shard is not None
            state = self._topics.find(OFFSETS_TOPIC)
            partitions = [each for each in state.partitions if each is not None] if state is not None else []
            self._begin_load(self._coordinator, shard, partitions)

    async def stop(self) -> None:
        """A long log need not be read to its end for nobody."""
        loads = list(self._loads.values())
        for load in loads:
            load.cancel()
        await asyncio.gather(*loads, return_exceptions=True)

    def on_leadership(self, partition: Partition, is_leader: bool, generation: Generation) -> None:
        """This broker leads a partition of the topic from now on, or no longer; changes come in their order.

        To be told the same leadership again changes nothing, except after a load that failed: that one is tried
        again. A node that is alone has nothing to be told.
        """
        if self._is_alone or partition.id.topic != OFFSETS_TOPIC:
            return
        if is_leader:
            self._take_over(partition, generation)
        else:
            self._give_up(partition.id.partition)

    def _take_over(self, partition: Partition, generation: Generation) -> None:
        assert self._coordinator is not None
        index = partition.id.partition
        current = self._coordinator.shard(index)
        if current is not None and current.generation == generation and index not in self.failed:
            return
        self._give_up(index)
        self._begin_load(self._coordinator, self._coordinator.take_over(index, generation), [partition])

    def _give_up(self, index: int) -> None:
        assert self._coordinator is not None
        load = self._loads.pop(index, None)
        if load is not None:
            load.cancel()
        self.failed.discard(index)
        self._coordinator.give_up(index)

    # --- reading back ----------------------------------------------------------------------------------------

    def _begin_load(
        self, coordinator: GroupCoordinator, shard: Shard, partitions: Iterable[Partition]
    ) -> None:
        load = asyncio.get_running_loop().create_task(self._load(coordinator, shard, list(partitions)))
        self._loads[shard.index] = load

    async def _load(self, coordinator: GroupCoordinator, shard: Shard, partitions: list[Partition]) -> None:
        try:
            for partition in partitions:
                await self._load_partition(coordinator, shard, partition)
            coordinator.loaded(shard)
        except AnabranchError:
            # Groups stay unavailable rather than starting from half of their offsets.
            logger.exception("the groups cannot be read back: run `anabranch log verify` on the stopped node")
            self.failed.add(shard.index)
        except Exception:
            logger.exception("the groups cannot be read back: this is a defect")
            self.failed.add(shard.index)

    async def _load_partition(
        self, coordinator: GroupCoordinator, shard: Shard, partition: Partition
    ) -> None:
        # What an earlier leadership handed to the log may still be on its way there, or to its followers.
        while appends := self._appends.get(partition.id.partition):
            await asyncio.wait(appends)
        end = partition.log.end_offset
        await self._until_safe(partition, end)
        async with self._reading:  # One log at a time: each holds a piece of its file in memory.
            await self._replay(coordinator, shard, partition, end)

    async def _until_safe(self, partition: Partition, end: Offset) -> None:
        """Until no record below `end` can be withdrawn any more."""
        while partition.high_watermark < end:
            published = asyncio.get_running_loop().create_future()
            waiting = self._core.fetch_waits.wait(
                functools.partial(_note_published, published, partition, end), [partition], SAFE_LOOK_MS
            )
            try:
                await published
            finally:
                waiting.leave()

    async def _replay(
        self, coordinator: GroupCoordinator, shard: Shard, partition: Partition, end: Offset
    ) -> None:
        for record in read_records(partition.log, partition.log.start_offset):
            if record.offset >= end:
                break
            if record.key is not None:
                coordinator.replay(shard, record.key, record.value)
            self._replayed_total += 1
            if self._replayed_total % RECORDS_PER_TURN == 0:
                await asyncio.sleep(0)


def _note_published(
    published: "asyncio.Future[None]", partition: Partition, end: Offset, is_final: bool
) -> bool:
    is_over = is_final or partition.high_watermark >= end
    if is_over and not published.done():
        published.set_result(None)
    return is_over


def index_of(group_id: str, state: TopicState) -> int:
    """Which partition of the topic a group's records go to."""
    is_short = len(group_id) <= _HASHED_CHARACTERS_MAX
    value = _kept_hash(group_id) if is_short else java_hash(group_id)
    return abs(value) % state.topic.partition_count


def java_hash(text: str) -> int:
    """Java's String.hashCode over UTF-16; Kafka takes its absolute value, and 0 for the one that has none."""
    data = text.encode("utf-16-be", "surrogatepass")
    # Horner's rule on all characters at once: in each round neighbouring lanes of one long number become one lane.
    value, lane_bytes, factor = int.from_bytes(data, "big"), 2, 31
    while lane_bytes < len(data):
        right = _right_lanes(lane_bytes, -(-len(data) // (2 * lane_bytes)))
        value = (value & right) + ((value >> 8 * lane_bytes) & right) * factor
        lane_bytes, factor = 2 * lane_bytes, factor * factor & 0xFFFFFFFF
    value &= 0xFFFFFFFF
    signed = value - 2**32 if value >= 2**31 else value
    return signed if signed != -(2**31) else 0


@functools.lru_cache(_MASKS_KEPT_MAX)
def _right_lanes(lane_bytes: int, count: int) -> int:
    """A mask of every second lane."""
    return int.from_bytes((bytes(lane_bytes) + b"\xff" * lane_bytes) * count, "big")


_kept_hash = functools.lru_cache(_HASHES_KEPT_MAX)(java_hash)
