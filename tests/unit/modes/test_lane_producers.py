"""Producers that come from another side of a split: what they may skip, repeat, and what is the same batch."""

from random import Random

import pytest

from anabranch.errors import NotOwnerError, OutOfOrderSequenceError, ProducerFencedError
from anabranch.modes.branch.lane_producers import LANES_REMEMBERED, SKIP_MS, LaneProducers
from anabranch.record.batch import BatchHeader, read_header
from anabranch.record.builder import BatchBuilder
from anabranch.record.producer_table import BATCHES_REMEMBERED, SEQUENCE_SPACE
from anabranch.values import LANE_BITS, Offset

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


# --- requests to primaries of before -------------------------------------------------------------------------------


def in_lane(lane: int, number: int = 0) -> Offset:
    return Offset((lane << LANE_BITS) + number)


def test_what_was_under_way_to_the_primary_before_is_known_however_much_was_written_since() -> None:
    """Java had sent 5 and 6 before the split, and sent them again when their time was up."""
    table = LaneProducers(in_lane(2))
    for sequence in range(7):
        table.note(header(sequence), in_lane(1, sequence), 0)
    for sequence in range(7, 40):
        assert table.original_of(header(sequence)) is None
        table.note(header(sequence), in_lane(2, sequence), 0)
    assert [table.original_of(header(sequence)) for sequence in (5, 6)] == [in_lane(1, 5), in_lane(1, 6)]
    assert [table.original_of(header(sequence)) for sequence in (35, 39)] == [in_lane(2, 35), in_lane(2, 39)]
    assert table.original_of(header(40)) is None


def test_an_old_number_with_other_records_is_not_taken_for_one_of_an_older_lane() -> None:
    """A client that gives up a batch may number those behind it anew."""
    table = LaneProducers(in_lane(2))
    table.note(header(0), in_lane(1), 0)
    for sequence in range(1, 40):
        table.note(header(sequence), in_lane(2, sequence), 0)
    with pytest.raises(NotOwnerError):
        table.original_of(header(0, b"other"))


def test_the_next_reign_knows_of_both_lanes_before_it_from_the_log_or_from_a_snapshot() -> None:
    written = [(sequence, in_lane(1 if sequence < 7 else 2, sequence)) for sequence in range(40)]
    replayed, before, restored = (LaneProducers(in_lane(lane)) for lane in (3, 2, 3))
    for sequence, offset in written:
        replayed.note(header(sequence), offset, 0)
        before.note(header(sequence), offset, 0)
    restored.restore({"producers": before.snapshot(in_lane(2, 40))})
    for table in (replayed, restored):
        for sequence, offset in (*written[2:7], *written[35:]):
            assert table.original_of(header(sequence)) == offset
        assert table.original_of(header(40)) is None


def test_what_a_lane_begins_with_is_told_from_what_was_written_to_it() -> None:
    """0 and 1 were written on another side, and again into lane 2 when the sides were joined."""
    for seams in ([], [in_lane(2), in_lane(2, 2)]):
        table = LaneProducers(in_lane(3), seams=seams)
        for sequence in range(20):
            table.note(header(sequence), in_lane(2, sequence), 0)
        if seams:
            assert table.original_of(header(1)) == in_lane(2, 1)
        else:
            with pytest.raises(NotOwnerError):
                table.original_of(header(1))


def test_what_is_remembered_of_a_producer_is_bounded_however_often_the_primary_changes() -> None:
    table = LaneProducers(in_lane(100))
    for sequence in range(1000):
        table.note(header(sequence), in_lane(sequence // 10, sequence), 0)
    batches = table.producers[7].batches
    assert len(batches) == LANES_REMEMBERED * BATCHES_REMEMBERED
    assert min(batch.base_sequence for batch in batches) == 1000 - LANES_REMEMBERED * 10 + 5
    for sequence in range(1000, 1020):
        table.note(header(sequence), in_lane(100, sequence), 0)
    assert len(table.producers[7].batches) == (LANES_REMEMBERED + 1) * BATCHES_REMEMBERED


def test_a_node_alone_takes_a_batch_of_an_older_lane_for_a_repeat_only_with_the_same_checksum() -> None:
    table = LaneProducers(in_lane(2), is_alone=True)
    table.note(header(0), in_lane(1), 0)
    for sequence in range(1, 20):
        table.note(header(sequence), in_lane(2, sequence), 0)
    assert table.original_of(header(0)) == in_lane(1)
    with pytest.raises(OutOfOrderSequenceError):
        table.original_of(header(0, b"other"))


@pytest.mark.parametrize("seed", range(30))
def test_many_at_once_leave_the_same_as_one_by_one(seed: int) -> None:
    rng = Random(seed)
    one_by_one, at_once = (LaneProducers(in_lane(100), seams=[in_lane(3, 10)]) for _ in range(2))
    headers, number = [], 0
    for offset in range(rng.randint(1, 120)):
        number = max(0, number + rng.choice((1, 1, 1, 1, 2, -3)))
        epoch = 1 if rng.random() < 0.02 * (offset > 60) else 0
        made = header(number, epoch=epoch)
        headers.append(made._replace(base_offset=in_lane(offset // 10, offset), max_timestamp=offset))
    split = rng.randrange(len(headers))
    for each in headers:
        one_by_one.replay(each, 0)
    at_once.replay_all(headers[:split])
    at_once.replay_all(headers[split:], 99)
    for table in (one_by_one, at_once):
        assert len(table.producers) == 1
    ones, others = one_by_one.producers[7], at_once.producers[7]
    assert (ones.epoch, ones.batches) == (others.epoch, others.batches)
    assert others.heard_ms == 99


def test_of_what_was_written_before_there_were_branches_the_last_five_count_as_in_any_other_mode() -> None:
    """Numbers begin anew after 2**31: later the same ones are of other records."""
    for start in (2, 3):  # Known when a reign begins, and after one.
        table = LaneProducers(in_lane(start))
        table.restore({"producers": [[7, 0, 0, [[number, number, number] for number in range(5)]]]})
        table.note(header(5), in_lane(2, 5), 0)
        assert table.original_of(header(1, b"any")) == 1
        for number in range(6, 10):
            table.note(header(number), in_lane(2, number), 0)
        assert all(batch.crc is not None for batch in table.producers[7].batches)
        with pytest.raises(NotOwnerError):
            table.original_of(header(4))
