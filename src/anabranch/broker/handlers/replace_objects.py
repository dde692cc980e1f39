"""ReplaceObjects, version 0, ours: what a job has stored takes the place of what it has read
(`broker.object.replacements`). Only the broker that named the new objects takes them.
"""

from typing import TYPE_CHECKING, Any

from anabranch.broker.handlers.answers import MESSAGE_LENGTH_MAX, accepted, refused
from anabranch.broker.handlers.name_objects import replacements_of
from anabranch.broker.requests.call import Call
from anabranch.errors import AnabranchError, CorruptDataError, InvalidRequestError

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker
    from anabranch.cluster.objects.entries import Replacement


async def handle(broker: "Broker", call: Call, request: dict[str, Any]) -> dict[str, Any]:
    try:
        replacements = replacements_of(broker)
        asked = [_replacement_of(row) for row in request["partitions"]]
        outcomes = await replacements.replace(asked)
    except AnabranchError as error:
        return {**refused(error), "partitions": []}
    rows = [
        {
            "topic_id": each.key[0],
            "partition_index": each.key[1],
            "is_replaced": outcome.is_replaced,
            "reason": outcome.reason[:MESSAGE_LENGTH_MAX] if outcome.reason else None,
        }
        for each, outcome in zip(asked, outcomes, strict=True)
    ]
    return {**accepted(), "partitions": rows}


def _replacement_of(row: dict[str, Any]) -> "Replacement":
    """Raises InvalidRequestError for rows that cannot be."""
    from anabranch.cluster.objects.entries import Replacement  # Not for a node without a store.
    from anabranch.objects.layout.names import ROW_BYTES, unpack_rows
    from anabranch.objects.layout.plans import ROWS_PER_REPLACEMENT

    if max(len(row["old_rows"]), len(row["new_rows"])) > 2 * ROWS_PER_REPLACEMENT * ROW_BYTES:
        raise InvalidRequestError(f"More than {ROWS_PER_REPLACEMENT} rows of one partition: ask for fewer.")
    try:
        old, new = (list(unpack_rows(row[name])) for name in ("old_rows", "new_rows"))
    except (CorruptDataError, ValueError, LookupError) as error:
        raise InvalidRequestError(f"Rows cannot be read: {error}") from error
    return Replacement((row["topic_id"], row["partition_index"]), old, new)
