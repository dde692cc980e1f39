"""Which rows of a request are left after a change of leaders, and how their answers become one."""

from typing import Any
from uuid import UUID

from anabranch.broker.requests.partial_answers import (
    CONFIGS,
    CREATED_TOPICS,
    DELETED_TOPICS,
    REASSIGNMENTS,
    left,
    merged,
    rows_in,
    taken_for_done,
)
from anabranch.wire.error_codes import ErrorCode as E

OPEN = (E.NOT_CONTROLLER,)
NO_ID = UUID(int=0)
Body = dict[str, Any]


def rows_of(kinds: Any, request: Body) -> Any:
    rows = rows_in(kinds, request)
    assert rows is not None
    return rows


def row(name: str, code: int) -> Body:
    return {"name": name, "error_code": code}


def test_only_rows_that_were_not_carried_out_are_left() -> None:
    request = {"topics": [{"name": name} for name in "abc"], "timeout_ms": 7}
    first = {"topics": [row("a", 0), row("b", E.REQUEST_TIMED_OUT), row("c", E.NOT_CONTROLLER)]}
    rows = rows_of(CREATED_TOPICS, request)
    assert left(rows, request, first, OPEN) == {"topics": [{"name": "c"}], "timeout_ms": 7}
    later = {"topics": [row("c", E.TOPIC_ALREADY_EXISTS)]}
    assert merged(rows, first, later, OPEN) == {
        "topics": [row("a", 0), row("b", E.REQUEST_TIMED_OUT), row("c", E.TOPIC_ALREADY_EXISTS)]
    }
    assert left(rows, {"topics": [{"name": "c"}]}, later, OPEN) is None


def test_rows_within_rows() -> None:
    asked = [{"partition_index": index, "replicas": [1]} for index in range(2)]
    request = {"topics": [{"name": name, "partitions": asked} for name in "ab"]}
    rows = rows_of(REASSIGNMENTS, request)

    def answer(*codes: tuple[int, int]) -> Body:
        return {
            "responses": [
                {
                    "name": name,
                    "partitions": [{"partition_index": i, "error_code": c} for i, c in enumerate(two)],
                }
                for name, two in zip("ab", codes, strict=True)
            ]
        }

    first = answer((0, 0), (0, E.NOT_CONTROLLER))
    assert left(rows, request, first, OPEN) == {"topics": [{"name": "b", "partitions": [asked[1]]}]}
    later = {"responses": [{"name": "b", "partitions": [{"partition_index": 1, "error_code": 5}]}]}
    assert merged(rows, first, later, OPEN) == answer((0, 0), (0, 5))


def test_topics_are_deleted_by_name_or_by_id() -> None:
    by_name = {"topic_names": ["a", "b"], "topics": []}
    rows = rows_of(DELETED_TOPICS, by_name)
    answer = {"responses": [row("a", 0), row("b", E.NOT_CONTROLLER)]}
    assert left(rows, by_name, answer, OPEN) == {"topic_names": ["b"], "topics": []}
    topic_id = UUID(int=5)
    by_id = {"topic_names": [], "topics": [{"name": None, "topic_id": topic_id}]}
    rows = rows_of(DELETED_TOPICS, by_id)
    first = {"responses": [{"name": None, "topic_id": topic_id, "error_code": E.NOT_CONTROLLER}]}
    later = {"responses": [{"name": "found", "topic_id": topic_id, "error_code": 0}]}
    assert left(rows, by_id, first, OPEN) == by_id
    assert merged(rows, first, later, OPEN) == later


def test_a_request_without_rows_has_none_left() -> None:
    assert rows_in(CONFIGS, {"resources": []}) is None


def test_nothing_left_to_do_means_that_it_was_done() -> None:
    request = {"topics": [{"name": "a", "partitions": [{"partition_index": 0}]}]}
    code = E.NO_REASSIGNMENT_IN_PROGRESS
    answer = {
        "responses": [
            {"name": "a", "partitions": [{"partition_index": 0, "error_code": code, "error_message": "no"}]}
        ]
    }
    done = taken_for_done(rows_of(REASSIGNMENTS, request), answer, code)
    assert done["responses"][0]["partitions"][0] == {
        "partition_index": 0,
        "error_code": 0,
        "error_message": None,
    }
