"""Starts, ends and progress: what users write, what checkpoints hold, and what it comes to."""

import json
from uuid import UUID

import pytest

from anabranch.errors import OptionError
from anabranch.pipeline.source.offsets import (
    Bounds,
    Point,
    Progress,
    parse_bound,
    parse_time,
    parse_times,
    resolve,
)
from anabranch.values import TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
BOUNDS = {A0: Bounds(10, 20), A1: Bounds(0, 0)}


def no_times(asked: object) -> dict[TopicPartition, int]:
    raise AssertionError("no time was asked for")


def test_progress_survives_json_with_the_identity_of_its_topics() -> None:
    progress = Progress({A1: 7, A0: 5, B0: 0}, {"a": UUID(int=1), "b": UUID(int=2)})
    assert Progress.from_json(json.loads(json.dumps(progress.to_json()))) == progress


def test_equal_progress_is_the_same_text_whatever_the_order_it_was_made_in() -> None:
    one, other = Progress({A0: 5, A1: 7, B0: 1}), Progress({B0: 1, A1: 7, A0: 5})
    assert json.dumps(one.to_json()) == json.dumps(other.to_json())


def test_partitions_are_ordered_as_numbers() -> None:
    progress = Progress({TopicPartition("a", number): 0 for number in (10, 9, 2)})
    assert list(progress.to_json()["a"]) == ["2", "9", "10"]


def test_offsets_of_sparks_connector_are_understood() -> None:
    assert Progress.from_json({"a": {"0": 5, "1": 7}}) == Progress({A0: 5, A1: 7})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", {A0: 10, A1: 0}),
        ("Latest", {A0: 20, A1: 0}),
        ('{"a": {"0": 15, "1": 0}}', {A0: 15, A1: 0}),
        ('{"a": {"0": -2, "1": -1}}', {A0: 10, A1: 0}),
        ('{"a": {"0": -1, "1": -2, "id": "00000000-0000-0000-0000-000000000001"}}', {A0: 20, A1: 0}),
    ],
)
def test_a_bound_becomes_an_offset_for_each_partition(text: str, expected: dict[TopicPartition, int]) -> None:
    assert resolve(parse_bound("startingOffsets", text), BOUNDS, no_times) == expected


def test_a_moment_is_asked_of_every_partition() -> None:
    bound = parse_bound("startingOffsets", "1970-01-01T00:00:01.500Z")
    assert bound.point is Point.TIMES
    asked: dict[TopicPartition, int] = {}

    def times(wanted: object) -> dict[TopicPartition, int]:
        asked.update(wanted)  # type: ignore[call-overload]
        return {A0: 12, A1: -1}

    assert resolve(bound, BOUNDS, times) == {A0: 12, A1: 0}
    assert asked == {A0: 1500, A1: 1500}


def test_a_time_is_ms_or_a_moment() -> None:
    assert parse_time("startingTimestamp", "1500").time_ms == 1500
    assert parse_time("startingTimestamp", "1970-01-01T00:00:01.5").time_ms == 1500


def test_times_may_differ_by_partition() -> None:
    bound = parse_times("startingOffsetsByTimestamp", '{"a": {"0": 1, "1": 2}}')
    assert resolve(bound, BOUNDS, lambda asked: {A0: asked[A0] + 10, A1: -1}) == {A0: 11, A1: 0}


def test_a_time_after_the_last_record_is_an_error_unless_told_otherwise() -> None:
    bound = parse_time("startingTimestamp", "99")
    with pytest.raises(OptionError, match=r"startingTimestamp: a-0 has no record at or after 99 ms"):
        resolve(bound, BOUNDS, lambda asked: dict.fromkeys(asked, -1), late=None)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("soon", "'soon' is none of earliest, latest"),
        ("{", "is not JSON"),
        ('{"a": 5}', "must name topics"),
        ('{"a": {"x": 5}}', "must name topics"),
        ('{"a": {"0": "5"}}', "must name topics"),
        ('{"a": {"0": true}}', "must name topics"),
        ('{"a": {"0": -3}}', "-3 for a-0 is no offset"),
    ],
)
def test_what_is_no_bound_is_refused_by_name(text: str, complaint: str) -> None:
    with pytest.raises(OptionError, match=rf"^startingOffsets: .*{complaint}"):
        parse_bound("startingOffsets", text)


def test_every_partition_must_be_named() -> None:
    with pytest.raises(OptionError, match="startingOffsets: a-1 has no number"):
        resolve(parse_bound("startingOffsets", '{"a": {"0": 5}}'), BOUNDS, no_times)


def test_a_partition_that_is_not_read_is_refused() -> None:
    bound = parse_bound("endingOffsets", '{"a": {"0": 5, "1": 0}, "b": {"0": 1}}')
    with pytest.raises(OptionError, match="endingOffsets: b-0 is not among the partitions"):
        resolve(bound, BOUNDS, no_times)
