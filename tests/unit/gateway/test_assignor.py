"""The range assignor: as Kafka's clients decide it."""

import pytest

from anabranch.gateway.sessions.assignor import range_assignment


@pytest.mark.parametrize(
    ("members", "count", "expected"),
    [
        (["a"], 3, {"a": [0, 1, 2]}),
        (["b", "a"], 3, {"a": [0, 1], "b": [2]}),
        (["a", "b", "c"], 7, {"a": [0, 1, 2], "b": [3, 4], "c": [5, 6]}),
        (["a", "b", "c"], 2, {"a": [0], "b": [1], "c": []}),
        (["a"], 0, {"a": []}),
    ],
)
def test_ranges_go_to_members_in_order_of_their_ids(
    members: list[str], count: int, expected: dict[str, list[int]]
) -> None:
    assigned = range_assignment({member: ["t"] for member in members}, {"t": count})
    assert {member: topics.get("t", []) for member, topics in assigned.items()} == expected


def test_a_topic_goes_only_to_those_who_subscribe_to_it() -> None:
    assigned = range_assignment({"a": ["t"], "b": ["t", "u"]}, {"t": 2, "u": 2})
    assert assigned == {"a": {"t": [0]}, "b": {"t": [1], "u": [0, 1]}}
