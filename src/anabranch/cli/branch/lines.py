"""Counting records of topics that are in mode branch, or were, for commands that otherwise count offsets.

Offsets of the first branch are dense, so nobody is asked before one lies beyond them; then whoever leads a partition
says which offsets there are.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from anabranch.cli.client import Broker

if TYPE_CHECKING:
    from anabranch.local_cluster.cluster_client import ClusterClient
    from anabranch.modes.branch.lines import Line

Pair = tuple[str, int]
DENSE_OFFSETS = 2**32
"""Of the first branch; nobody else ever gets there but topics that had branches."""
ATTEMPTS = 3
"""The leadership may be on its way to another broker."""


def lines_of(broker: Broker, ends: Mapping[Pair, int]) -> "dict[Pair, Line]":
    """Of those partitions whose offsets have gaps between branches. Raises ClusterAnswerError."""
    wanted = {pair for pair, end in ends.items() if end >= DENSE_OFFSETS}
    if not wanted:
        return {}
    from anabranch.local_cluster.cluster_client import ClusterClient

    found: dict[Pair, Line] = {}
    with ClusterClient(broker.bootstrap, broker.seconds_max) as client:
        for _ in range(ATTEMPTS):
            wanted = _ask(client, sorted(wanted), found)
            if not wanted:
                break
    return found


def _ask(client: "ClusterClient", wanted: list[Pair], found: "dict[Pair, Line]") -> set[Pair]:
    """Those of which whoever was asked says that another broker leads them."""
    from anabranch.wire.api_keys import ApiKey

    elsewhere = set()
    for leader, pairs in _by_leader(client.metadata(sorted({name for name, _ in wanted})), wanted).items():
        asked: dict[str, list[int]] = {}
        for name, partition in pairs:
            asked.setdefault(name, []).append(partition)
        topics = [{"name": name, "partitions": numbers} for name, numbers in asked.items()]
        body = {"topics": topics, "include_rows": False}
        for topic in client.ask(ApiKey.DESCRIBE_BRANCHES, body, leader)["topics"]:
            for row in topic["partitions"]:
                pair = topic["name"], row["partition_index"]
                if row["error_code"]:
                    elsewhere.add(pair)
                else:
                    found[pair] = _line(row)
    return elsewhere


def _by_leader(metadata: dict[str, Any], wanted: list[Pair]) -> dict[int, list[Pair]]:
    """Those that have none are left out: nobody knows now."""
    leaders: dict[int, list[Pair]] = {}
    for topic in metadata["topics"]:
        for row in topic["partitions"]:
            pair = topic["name"], row["partition_index"]
            if pair in wanted and row["leader_id"] >= 0:
                leaders.setdefault(row["leader_id"], []).append(pair)
    return leaders


def _line(row: dict[str, Any]) -> "Line":
    from anabranch.modes.branch.lines import Span
    from anabranch.modes.branch.rows import Lane
    from anabranch.values import Offset

    return tuple(
        Span(Lane(each["lane"]), Offset(each["start_offset"]), Offset(each["end_offset"]))
        for each in row["line"]
    )


def records_between(line: "Line | None", start: int, end: int) -> int:
    """Without a line every offset is a record."""
    if line is None:
        return max(0, end - start)
    from anabranch.modes.branch import history as branch_history

    return branch_history.records_between(line, start, end)


def offset_before(line: "Line | None", end: int, count: int) -> int:
    """Where the last so many records begin."""
    if line is None:
        return end - count
    from anabranch.modes.branch import history as branch_history

    return branch_history.offset_before(line, end, count)
