"""OffsetsTopic: the `__consumer_offsets` log, where groups keep their offsets and members.

Made when the first group writes. A group's records all go to one partition, chosen as Kafka chooses it, so that
Kafka's tools find them. At a start the log is replayed into the coordinator piece by piece, between requests.
"""

import asyncio
import logging

from anabranch.broker.core import BrokerCore
from anabranch.broker.groups.coordinator import GroupCoordinator
from anabranch.broker.groups.messages import LogRecord
from anabranch.broker.metadata_log import read_records
from anabranch.broker.topics import OFFSETS_TOPIC, Topics
from anabranch.errors import AnabranchError, CoordinatorNotAvailableError
from anabranch.record.builder import BatchBuilder

logger = logging.getLogger(__name__)

RECORDS_PER_TURN = 500


class OffsetsTopic:
    def __init__(self, core: BrokerCore, topics: Topics) -> None:
        self._core = core
        self._topics = topics

    async def append(self, group_id: str, records: list[LogRecord]) -> None:
        """Durable when it returns. Raises CoordinatorNotAvailableError, which clients try again."""
        try:
            state = self._topics.find(OFFSETS_TOPIC) or await self._topics.create_on_use(OFFSETS_TOPIC)
            builder = BatchBuilder()
            now_ms = self._core.clock.wall_ms()
            for key, value in records:
                builder.add(key, value, timestamp_ms=now_ms)
            index = abs(java_hash(group_id)) % state.topic.partition_count
            partition = self._topics.partition(OFFSETS_TOPIC, index)
            await self._core.append(partition, builder.build())
        except AnabranchError as error:
            raise CoordinatorNotAvailableError(f"Offsets cannot be written: {error}") from error

    async def replay(self, coordinator: GroupCoordinator) -> None:
        """Read everything back; the coordinator answers once this is done."""
        state = self._topics.find(OFFSETS_TOPIC)
        count = 0
        for partition in state.partitions if state is not None else ():
            if partition is None:
                continue
            for record in read_records(partition.log, partition.log.start_offset):
                if record.key is not None:
                    coordinator.replay(record.key, record.value)
                count += 1
                if count % RECORDS_PER_TURN == 0:
                    await asyncio.sleep(0)
        coordinator.loaded()


def java_hash(text: str) -> int:
    """Java's String.hashCode over UTF-16; Kafka takes its absolute value, and 0 for the one that has none."""
    value = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for position in range(0, len(data), 2):
        value = (31 * value + int.from_bytes(data[position : position + 2], "big")) & 0xFFFFFFFF
    signed = value - 2**32 if value >= 2**31 else value
    return signed if signed != -(2**31) else 0
