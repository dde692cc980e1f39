"""Producers that come from another side of a split: what they may skip, repeat, and what is the same batch."""

import pytest

from anabranch.errors import NotOwnerError, OutOfOrderSequenceError, ProducerFencedError
from anabranch.record.batch import BatchHeader, read_header
from anabranch.record.builder import BatchBuilder
from anabranch.record.lane_producers import SKIP_MS, LaneProducers
from anabranch.record.producer_table import SEQUENCE_SPACE
from anabranch.values import Offset

REIGN = Offset(1000)


def header(sequence: int, value: bytes = b"a", epoch: int = 0) -> BatchHeader:
    builder = BatchBuilder(producer_id=7, producer_epoch=epoch, base_sequence=sequence)
    builder.add(None, value, timestamp_ms=1)
    return read_header(builder.build())


class Table(LaneProducers):
    """With a clock of its own."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = 0
        super().__init__(REIGN, lambda: self.now)


def test_of_what_came_before_the_reign_the_last_numbers_are_remembered_whatever_their_order() -> None:
    table = Table()
    for offset, sequence in enumerate([10, 11, 12, 3, 4, 5, 6]):
        table.note(header(sequence), Offset(offset), 0)
    assert table.original_of(header(12)) == 2
    assert table.original_of(header(13)) is None


def test_numbers_that_begin_anew_at_zero_are_behind_those_before() -> None:
    table = Table()
    last = SEQUENCE_SPACE - 1
    for offset, sequence in enumerate([0, 1, last - 4, last - 3, last - 2, last - 1, last]):
        table.note(header(sequence), Offset(offset), 0)
    assert table.original_of(header(1)) == 1
    assert table.original_of(header(2)) is None


def test_the_same_numbers_with_another_checksum_are_another_batch() -> None:
    table = Table()
    for sequence in range(5):
        table.note(header(sequence), Offset(sequence), 0)
    with pytest.raises(NotOwnerError):
        table.original_of(header(4, b"other"))
    table.now = SKIP_MS
    assert table.original_of(header(4, b"other")) is None


def test_whoever_skips_numbers_is_told_to_come_again_and_then_begins_with_the_least() -> None:
    table = Table()
    table.note(header(4), Offset(0), 0)
    for sequence in (8, 9):
        with pytest.raises(NotOwnerError):
            table.original_of(header(sequence))
    table.now = SKIP_MS
    assert table.original_of(header(8)) is None
    table.note(header(8), REIGN, 0)
    assert table.original_of(header(9)) is None
    with pytest.raises(NotOwnerError):
        table.original_of(header(11))


def test_whoever_goes_on_elsewhere_meanwhile_begins_to_wait_anew() -> None:
    table = Table()
    table.note(header(4), Offset(0), 0)
    for now, sequence in ((0, 8), (SKIP_MS, 20), (SKIP_MS + 1, 21), (2 * SKIP_MS - 1, 20)):
        table.now = now
        with pytest.raises(NotOwnerError):
            table.original_of(header(sequence))
    table.now = 2 * SKIP_MS
    assert table.original_of(header(20)) is None


def test_a_producer_may_go_back_to_what_was_refused_elsewhere() -> None:
    table = Table()
    for sequence in range(10):
        table.note(header(sequence), Offset(REIGN + sequence), 0)
    assert table.original_of(header(9)) == REIGN + 9
    with pytest.raises(NotOwnerError):
        table.original_of(header(2, b"other"))
    table.now = SKIP_MS
    assert table.original_of(header(2, b"other")) is None


def test_an_epoch_that_began_elsewhere_goes_on_here_and_an_older_one_is_fenced() -> None:
    table = Table()
    table.note(header(4), REIGN, 0)
    with pytest.raises(NotOwnerError):
        table.original_of(header(20, epoch=1))
    table.now = SKIP_MS
    assert table.original_of(header(20, epoch=1)) is None
    table.note(header(20, epoch=1), Offset(REIGN + 1), 0)
    with pytest.raises(ProducerFencedError):
        table.original_of(header(5))


def test_an_unknown_producer_that_does_not_begin_with_its_first_batch_waits_too() -> None:
    table = Table()
    with pytest.raises(NotOwnerError):
        table.original_of(header(3))
    assert table.original_of(header(0)) is None


def test_a_node_alone_has_the_usual_rules() -> None:
    table = LaneProducers(Offset(0), is_alone=True)
    table.note(header(0), Offset(0), 0)
    with pytest.raises(OutOfOrderSequenceError):
        table.original_of(header(5))


def test_the_batch_that_follows_is_taken_at_once_though_a_later_one_came_first() -> None:
    table = Table()
    table.note(header(4), Offset(0), 0)
    with pytest.raises(NotOwnerError):
        table.original_of(header(6))
    assert table.original_of(header(5)) is None


def test_an_older_epoch_that_was_written_again_does_not_push_out_the_newer() -> None:
    table = Table()
    table.note(header(0, epoch=3), Offset(0), 0)
    table.note(header(40, epoch=2), Offset(1), 0)
    assert table.original_of(header(0, epoch=3)) == 0


def test_whoever_comes_again_seldom_is_taken_all_the_same() -> None:
    """Each time it sends several, of which the second comes when the first has just been refused for the last time."""
    table = Table()
    table.note(header(4), Offset(0), 0)
    for now, sequence in ((0, 8), (SKIP_MS - 1, 8), (SKIP_MS, 9)):
        table.now = now
        with pytest.raises(NotOwnerError):
            table.original_of(header(sequence))
    table.now = 3 * SKIP_MS
    assert table.original_of(header(8)) is None
