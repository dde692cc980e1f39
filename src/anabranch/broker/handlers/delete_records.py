"""DeleteRecords, versions 0 to 2: everything below an offset goes; -1 means everything that is safe.

The new start is durable before the answer; the files follow when retention runs.
"""

from typing import TYPE_CHECKING, Any

from anabranch.broker.call import Call
from anabranch.broker.error_table import code_of
from anabranch.broker.topics import OFFSETS_TOPIC
from anabranch.errors import AnabranchError, InvalidTopicError, OffsetOutOfRangeError, PolicyViolationError
from anabranch.values import Offset

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

ALL = -1


async def handle(broker: "Broker", call: Call, request: dict[str, Any]) -> dict[str, Any]:
    return {
        "topics": [
            {
                "name": topic["name"],
                "partitions": [
                    await _row(broker, topic["name"], asked["partition_index"], asked["offset"])
                    for asked in topic["partitions"]
                ],
            }
            for topic in request["topics"]
        ]
    }


async def _row(broker: "Broker", name: str, index: int, offset: int) -> dict[str, Any]:
    try:
        partition = broker.topics.partition(name, index)
        partition.check_leader()
        if name == OFFSETS_TOPIC:
            raise InvalidTopicError(f"{OFFSETS_TOPIC} is shortened by the broker alone.")
        if not partition.settings.is_deleted_by_age:
            raise PolicyViolationError(
                f"Topic {name} is compacted only: records go when their key gets a new value."
            )
        wanted = partition.high_watermark if offset == ALL else offset
        if not 0 <= wanted <= partition.high_watermark:
            raise OffsetOutOfRangeError(f"Offset {offset} is not between 0 and {partition.high_watermark}.")
        await broker.delete_records(partition, Offset(wanted))
    except AnabranchError as error:
        return {"partition_index": index, "low_watermark": -1, "error_code": code_of(error)}
    return {"partition_index": index, "low_watermark": partition.log.start_offset, "error_code": 0}
