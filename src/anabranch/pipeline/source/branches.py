"""Topics in mode branch, as a reader sees them: which offsets of a partition have records, and of which branch.

Offsets of a branch topic are lane << 32 | n: between the records of two lanes lie billions of numbers that no record
has. They stay when the topic leaves that mode. Whoever counts or cuts a range has to know where they are; the broker
that serves the partition says so.
"""

from collections.abc import Iterable

from anabranch.pipeline.client.client import Client, by_topic, check
from anabranch.pipeline.source.plan import Line, Lines, Span
from anabranch.values import LANE_BITS, TopicPartition
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.codec import Body
from anabranch.wire.error_codes import ErrorCode

MODE = "anabranch.mode"
BRANCH_MODE = "branch"


def branch_of(offset: int) -> int:
    """The branch that a record was written to, by its offset."""
    return offset >> LANE_BITS


def lane_folder(branch: int) -> str:
    """Where a broker keeps what it has of a branch, in the partition's own folder."""
    return f"lane-{branch:010d}"


def may_have_gaps(offset: int) -> bool:
    """Whether a partition that ends there can have been in more than one branch."""
    return branch_of(offset) > 0


def lines(client: Client, places: Iterable[TopicPartition]) -> Lines:
    """Of partitions that are in mode branch, or may have been, as whoever leads them serves them now; those that have
    no gaps may be left out. UnknownTopicOrPartitionError if one of them is not there any more."""
    wanted = list(places)
    return client.patiently(lambda: _lines(client, wanted)) if wanted else {}


def _lines(client: Client, places: list[TopicPartition]) -> Lines:
    found: dict[TopicPartition, Line] = {}
    for link, led in client.links_of(places):
        asked = [
            {"name": name, "partitions": [place.partition for place in named]}
            for name, named in by_topic(led).items()
        ]
        for topic in link.ask(ApiKey.DESCRIBE_BRANCHES, {"topics": asked, "include_rows": False})["topics"]:
            if topic["error_code"] == ErrorCode.INVALID_REQUEST:
                continue  # It never had branches, and very many records.
            check(topic["error_code"], f"the branches of {topic['name']}")
            for row in topic["partitions"]:
                place = TopicPartition(topic["name"], row["partition_index"])
                check(row["error_code"], str(place))
                found[place] = _line(row)
    return found


def _line(row: Body) -> Line:
    """What the topic had before it could branch is dense, and lies before its first lane's part."""
    spans = [Span(each["lane"], each["start_offset"], each["end_offset"]) for each in row["line"]]
    first = spans[0].start if spans else row["high_watermark"]
    start = row["log_start_offset"]
    if start < first and branch_of(start) == branch_of(first):
        spans.insert(0, Span(branch_of(start), start, first))
    return tuple(spans)
