"""Producers across lanes: a repeat is known by numbers and checksum, and whoever comes from elsewhere goes on."""

from itertools import count

import pytest

from anabranch.errors import NotOwnerError, OutOfOrderSequenceError, ProducerFencedError
from anabranch.record.batch import BatchHeader, read_header
from anabranch.record.builder import BatchBuilder
from anabranch.record.lane_producers import SKIP_MS, LaneProducers
from anabranch.values import Offset

HERE = Offset(1024 << 32)


def header(sequence: int, value: bytes = b"v", epoch: int = 0) -> BatchHeader:
    builder = BatchBuilder(producer_id=7, producer_epoch=epoch, base_sequence=sequence)
    builder.add(None, value, timestamp_ms=0)
    return read_header(builder.build())


def table() -> LaneProducers:
    """Sequences 0 to 2 were written before this reign. At every look at the clock much time has passed."""
    table = LaneProducers(HERE, count(step=SKIP_MS).__next__)
    for sequence in range(3):
        table.note(header(sequence), Offset(sequence), 0)
    return table


def test_a_repeat_of_what_was_written_before_the_reign_has_its_old_offset() -> None:
    assert table().original_of(header(1)) == 1


@pytest.mark.parametrize("sequence", [0, 2, 9])
def test_a_first_batch_may_skip_or_repeat_numbers_if_it_comes_again(sequence: int) -> None:
    producers = table()
    with pytest.raises(NotOwnerError):
        producers.original_of(header(sequence, b"another"))
    assert producers.original_of(header(sequence, b"another")) is None
    producers.note(header(sequence, b"another"), HERE, 0)
    assert producers.original_of(header(sequence, b"another")) == HERE
    assert producers.original_of(header(sequence + 1)) is None or sequence + 1 < 3


def test_within_a_lane_the_same_numbers_are_a_repeat_whatever_they_hold() -> None:
    producers = table()
    producers.note(header(5), HERE, 0)
    assert producers.original_of(header(5, b"another")) == HERE


def test_an_older_epoch_is_fenced_and_a_newer_one_may_begin_anywhere_that_is_not_here() -> None:
    producers = table()
    producers.note(header(0, epoch=2), Offset(3), 0)
    with pytest.raises(ProducerFencedError):
        producers.original_of(header(1, epoch=1))
    assert producers.original_of(header(4, epoch=3)) is None
    producers.note(header(4, epoch=3), HERE, 0)
    with pytest.raises(OutOfOrderSequenceError):
        producers.original_of(header(4, epoch=4))


def test_without_others_the_usual_rules_hold_across_lanes() -> None:
    producers = LaneProducers(Offset(0))
    producers.note(header(0), Offset(0), 0)
    with pytest.raises(OutOfOrderSequenceError):
        producers.original_of(header(2))
    assert producers.original_of(header(1)) is None


def test_checksums_are_in_the_snapshot() -> None:
    again = LaneProducers(HERE)
    again.restore({"producers": table().snapshot(Offset(3))})
    assert again.original_of(header(1)) == 1
    with pytest.raises(NotOwnerError):
        again.original_of(header(1, b"another"))
