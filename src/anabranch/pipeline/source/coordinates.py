"""Coordinates of a topic in the object store: which bytes of which objects hold its records, as the broker says.

They are good for a while: what they name may be merged into other objects at any time, and is deleted
`object.collect.ms` later. Whoever finds an object gone asks again.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple
from uuid import UUID

from anabranch.errors import PipelineError
from anabranch.objects.layout.names import Row, unpack_rows
from anabranch.pipeline.client.client import GONE, Client, check
from anabranch.pipeline.client.connection import Connection
from anabranch.values import Offset, TopicPartition
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.codec import Body
from anabranch.wire.error_codes import ErrorCode

TO_THE_END = -1
READS_MAX = 10


class Coordinates(NamedTuple):
    """Of one partition; the rows are in the order of offsets, the first may begin before what was asked for."""

    store_url: str
    merge_bytes: int
    """The size from which objects are large."""
    start: Offset
    end: Offset
    """The partition's own, whatever was asked for."""
    rows: Sequence[Row]


def coordinates(
    client: Client, place: TopicPartition, topic_id: UUID, start: int = 0, end: int = TO_THE_END
) -> Coordinates:
    """Where the records from `start` and before `end` lie. UnknownTopicOrPartitionError if the topic is not there any
    more, PipelineError if its records are not in an object store."""
    for _ in range(READS_MAX):
        found = _read(client, place, topic_id, start, end)
        if found is not None:
            return found
    raise PipelineError(f"The coordinates of {place} change faster than they can be read: try again.")


def _read(client: Client, place: TopicPartition, topic_id: UUID, start: int, end: int) -> Coordinates | None:
    """None: they have changed between one answer and the next."""
    rows: list[Row] = []
    while True:
        asked = {
            "topic_id": topic_id,
            "partition_index": place.partition,
            "start_offset": start,
            "end_offset": end,
        }
        answer = client.patiently(partial(_asked, client, place, asked))
        more = list(unpack_rows(answer["rows"]))
        if rows and more and more[0].base_offset < rows[-1].next_offset:
            return None
        rows += more
        start = answer["next_offset"]
        if start == TO_THE_END:
            return Coordinates(
                answer["store_url"],
                answer["merge_bytes"],
                Offset(answer["log_start_offset"]),
                Offset(answer["high_watermark"]),
                rows,
            )


def _asked(client: Client, place: TopicPartition, asked: Body) -> Body:
    return checked(client.leader(place).ask(ApiKey.DESCRIBE_OBJECTS, asked), str(place))


def checked(answer: Body, what: str) -> Body:
    """The answer, or what its error means: with the broker's own words, where it has some."""
    code, said = answer["error_code"], answer["error_message"]
    if code and code not in GONE and said and not ErrorCode(code).retriable:
        raise PipelineError(f"{what}: {said}")
    check(code, what)
    return answer


def named_object(link: Connection) -> str:
    """A name for one object of a job; only the broker behind this connection takes what is stored under it."""
    names: list[str] = checked(link.ask(ApiKey.NAME_OBJECTS, {"count": 1}), "a name for an object")["names"]
    return names[0]


def patient_link(client: Client, place: TopicPartition) -> Connection:
    """A connection to whoever leads a partition, to be kept for several questions."""
    return client.patiently(lambda: client.leader(place))
