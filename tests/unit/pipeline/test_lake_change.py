"""What a table knows of its pipeline: the topic it was, and what was read."""

import json
from uuid import UUID

import pytest

from anabranch.errors import TableError
from anabranch.pipeline.lake.change import NO_TOPIC_ID, SourceState, known_id

OLD, NEW = UUID(int=1), UUID(int=2)


def test_a_state_is_read_back_as_it_was_written() -> None:
    state = SourceState(7, 8, {0: 2**40, 2: 5}, 10, 4, 14, OLD)
    assert SourceState.from_json(state.to_json()) == state


def test_a_state_of_before_topics_and_reads_were_kept_is_read() -> None:
    old = {"owner": 7, "batch": 8, "offsets": {"0": 5}, "rows": 10, "dlq": 4}
    state = SourceState.from_json(json.dumps(old))
    assert state == SourceState(7, 8, {0: 5}, 10, 4, None, None)
    assert state.records_read == 14


def test_what_was_read_is_a_count_of_its_own() -> None:
    assert SourceState(7, 8, {}, 10, 4, 15).records_read == 15


@pytest.mark.parametrize(
    ("kept", "now", "is_another"),
    [(OLD, NEW, True), (OLD, OLD, False), (None, NEW, False), (OLD, None, False), (None, None, False)],
)
def test_topics_are_different_only_if_both_are_known(
    kept: UUID | None, now: UUID | None, is_another: bool
) -> None:
    assert SourceState(7, 8, {0: 5}, topic_id=kept).is_of_another(now) is is_another


def test_zeros_are_no_identity() -> None:
    assert known_id(NO_TOPIC_ID) is None
    assert known_id(NEW) == NEW


@pytest.mark.parametrize(
    "text", ["", "[]", '{"owner": 1}', '{"owner":1,"batch":1,"offsets":{},"rows":1,"dlq":0,"topic_id":"x"}']
)
def test_a_spoilt_state_is_said(text: str) -> None:
    with pytest.raises(TableError, match="cannot be read"):
        SourceState.from_json(text)
