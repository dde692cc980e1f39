"""DeleteRecords, versions 0 to 2: everything below an offset goes; -1 means everything that is safe.

The new start is durable before the answer; the files follow when retention runs. Where the metadata quorum agrees on
the start, its leader moves it, whichever broker was asked.
"""

from typing import TYPE_CHECKING, Any

from anabranch.broker.requests.call import Call
from anabranch.broker.requests.error_table import code_of
from anabranch.broker.requests.turns import Pace
from anabranch.broker.topics.internal_topics import check_not_internal
from anabranch.errors import AnabranchError, OffsetOutOfRangeError, PolicyViolationError
from anabranch.values import Offset
from anabranch.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

ALL = -1
Row = dict[str, Any]


async def handle(broker: "Broker", call: Call, request: dict[str, Any]) -> dict[str, Any]:
    elsewhere: list[Row] = []
    if broker.forwarding is not None and not getattr(call.client, "is_far", False):
        elsewhere = _part(broker, request["topics"], starts_by_quorum=True)
    here = _part(broker, request["topics"], starts_by_quorum=False) if elsewhere else request["topics"]
    pace = broker.turns.pace()
    rows = [{"name": topic["name"], "partitions": await _rows(broker, topic, pace)} for topic in here]
    if elsewhere:  # A topic that changes its mode may be in both: in the answer it is one all the same.
        rows += await _at_leader(broker, call, {**request, "topics": elsewhere})
    return {"topics": _joined(rows)}


def _part(broker: "Broker", topics: list[Row], *, starts_by_quorum: bool) -> list[Row]:
    """Those of the partitions whose start the metadata quorum moves, or those of the others."""
    parts = [
        {
            **topic,
            "partitions": [
                asked
                for asked in topic["partitions"]
                if _starts_by_quorum(broker, topic["name"], asked["partition_index"]) == starts_by_quorum
            ],
        }
        for topic in topics
    ]
    return [part for part in parts if part["partitions"]]


def _joined(rows: list[Row]) -> list[Row]:
    by_name: dict[str, Row] = {}
    for row in rows:
        known = by_name.setdefault(row["name"], {**row, "partitions": []})
        known["partitions"] += row["partitions"]
    return list(by_name.values())


def _starts_by_quorum(broker: "Broker", name: str, index: int) -> bool:
    partition = broker.topics.find_partition(name, index)
    return partition is not None and partition.ends_by_quorum


async def _at_leader(broker: "Broker", call: Call, request: dict[str, Any]) -> list[Row]:
    assert broker.forwarding is not None
    try:
        answer = await broker.forwarding.at_leader(ApiKey.DELETE_RECORDS, call.header.api_version, request)
    except AnabranchError as error:
        answer = refuse(request, error)
    return list(answer["topics"])


async def _rows(broker: "Broker", topic: dict[str, Any], pace: Pace) -> list[Row]:
    rows = []
    for asked in topic["partitions"]:
        await pace.row()
        rows.append(await _row(broker, topic["name"], asked["partition_index"], asked["offset"]))
    return rows


async def _row(broker: "Broker", name: str, index: int, offset: int) -> Row:
    try:
        partition = broker.topics.partition(name, index)
        partition.check_leader()
        check_not_internal(name)
        if not partition.settings.is_deleted_by_age:
            raise PolicyViolationError(
                f"Topic {name} is compacted only: records go when their key gets a new value."
            )
        wanted = partition.deletable_end if offset == ALL else offset
        if not 0 <= wanted <= partition.high_watermark:
            raise OffsetOutOfRangeError(f"Offset {offset} is not between 0 and {partition.high_watermark}.")
        await broker.kinds.of(partition).delete_before(partition, Offset(wanted))
    except AnabranchError as error:
        return _refused(index, error)
    return {"partition_index": index, "low_watermark": partition.start_offset, "error_code": 0}


def _refused(index: int, error: AnabranchError) -> Row:
    return {"partition_index": index, "low_watermark": -1, "error_code": code_of(error)}


def refuse(request: dict[str, Any], error: AnabranchError) -> dict[str, Any]:
    return {
        "topics": [
            {
                "name": topic["name"],
                "partitions": [_refused(asked["partition_index"], error) for asked in topic["partitions"]],
            }
            for topic in request["topics"]
        ]
    }
