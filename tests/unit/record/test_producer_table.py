"""Kafka's rules for idempotent producers."""

import json

import pytest

from anabranch.errors import InvalidRecordError, OutOfOrderSequenceError, ProducerFencedError
from anabranch.record.batch import BatchHeader
from anabranch.record.producer_table import BATCHES_REMEMBERED, SEQUENCE_SPACE, ProducerTable
from anabranch.values import Offset


def header(
    sequence: int, count: int = 1, epoch: int = 0, producer_id: int = 7, offset: int = 0
) -> BatchHeader:
    return BatchHeader(
        base_offset=Offset(offset),
        batch_length=100,
        generation=0,
        magic=2,
        crc=0,
        attributes=0,
        last_offset_delta=count - 1,
        base_timestamp=500,
        max_timestamp=500,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        record_count=count,
    )


def write(table: ProducerTable, head: BatchHeader, offset: int) -> None:
    assert table.original_of(head) is None
    table.note(head, Offset(offset), 1000)


def table_of(*heads: BatchHeader) -> ProducerTable:
    """Each batch lies at ten times its number."""
    table = ProducerTable()
    for number, head in enumerate(heads):
        write(table, head, 10 * number)
    return table


@pytest.mark.parametrize("sequence", [0, 5, SEQUENCE_SPACE - 1])
def test_unknown_producer_may_start_anywhere(sequence: int) -> None:
    assert ProducerTable().original_of(header(sequence)) is None


def test_next_sequence_is_taken() -> None:
    assert table_of(header(0, count=3)).original_of(header(3)) is None


@pytest.mark.parametrize("sequence", [0, 1, 2, 4, 100])
def test_gap_or_overlap_is_refused(sequence: int) -> None:
    with pytest.raises(OutOfOrderSequenceError):
        table_of(header(0, count=3)).original_of(header(sequence))


def test_each_of_the_last_five_batches_is_recognised() -> None:
    table = table_of(*[header(sequence) for sequence in range(BATCHES_REMEMBERED)])
    assert [table.original_of(header(sequence)) for sequence in range(BATCHES_REMEMBERED)] == [
        0,
        10,
        20,
        30,
        40,
    ]


def test_sixth_batch_back_is_not_remembered() -> None:
    table = table_of(*[header(sequence) for sequence in range(BATCHES_REMEMBERED + 1)])
    assert table.original_of(header(1)) == 10
    with pytest.raises(OutOfOrderSequenceError):
        table.original_of(header(0))


def test_same_start_with_another_length_is_no_repeat() -> None:
    with pytest.raises(OutOfOrderSequenceError):
        table_of(header(0, count=3)).original_of(header(0, count=2))


def test_sequence_wraps_after_its_largest_number() -> None:
    table = table_of(header(SEQUENCE_SPACE - 2, count=4))
    assert table.original_of(header(SEQUENCE_SPACE - 2, count=4)) == 0
    assert table.original_of(header(2)) is None
    table = table_of(header(SEQUENCE_SPACE - 1))
    assert table.original_of(header(0)) is None


def test_older_epoch_is_fenced_even_for_a_repeat() -> None:
    table = table_of(header(0, epoch=3))
    with pytest.raises(ProducerFencedError):
        table.original_of(header(0, epoch=2))


def test_newer_epoch_starts_at_zero() -> None:
    table = table_of(header(0), header(1))
    with pytest.raises(OutOfOrderSequenceError):
        table.original_of(header(2, epoch=1))
    write(table, header(0, epoch=1), 90)
    with pytest.raises(ProducerFencedError):
        table.original_of(header(2))
    assert table.original_of(header(0, epoch=1)) == 90


@pytest.mark.parametrize(("sequence", "epoch"), [(-1, 0), (0, -1)])
def test_producer_id_without_sequence_or_epoch_is_refused(sequence: int, epoch: int) -> None:
    with pytest.raises(InvalidRecordError):
        ProducerTable().original_of(header(sequence, epoch=epoch))


def test_producers_do_not_know_each_other() -> None:
    table = table_of(header(0), header(9, producer_id=8))
    assert table.original_of(header(1)) is None
    assert table.original_of(header(10, producer_id=8)) is None


def test_undo_takes_the_newest_batch_back() -> None:
    table = table_of(header(0))
    noted = table.note(header(1), Offset(10), 2000)
    table.undo(noted)
    assert table.original_of(header(0)) == 0
    assert table.original_of(header(1)) is None
    with pytest.raises(OutOfOrderSequenceError):
        table.original_of(header(2))


def test_undo_of_several_goes_back_to_where_they_began() -> None:
    table = table_of(header(0))
    noted = [table.note(header(sequence), Offset(10 * sequence), 2000) for sequence in (1, 2)]
    for entry in reversed(noted):
        table.undo(entry)
    assert table.original_of(header(1)) is None


def test_undo_of_the_first_batch_lets_it_come_again() -> None:
    table = ProducerTable()
    table.undo(table.note(header(0), Offset(0), 2000))
    assert table.original_of(header(0)) is None


def test_undo_of_a_new_epoch_brings_the_old_one_back() -> None:
    table = table_of(header(0))
    table.undo(table.note(header(0, epoch=1), Offset(10), 2000))
    assert table.original_of(header(0)) == 0


def test_snapshot_restores_to_the_same_answers() -> None:
    table = table_of(*[header(sequence) for sequence in range(7)], header(4, epoch=2, producer_id=9))
    other = ProducerTable()
    other.restore(json.loads(json.dumps({"producers": table.snapshot(Offset(80))})))
    assert other.original_of(header(6)) == 60
    assert other.original_of(header(7)) is None
    assert other.original_of(header(4, epoch=2, producer_id=9)) == 70
    write(other, header(7), 80)
    assert len(other.producers[7].batches) == BATCHES_REMEMBERED
    with pytest.raises(OutOfOrderSequenceError):
        other.original_of(header(2))


def test_replay_enters_what_the_log_holds() -> None:
    table = ProducerTable()
    table.replay(header(0, offset=30), 900)
    table.replay(header(-1, producer_id=-1, offset=31), 900)
    table.replay(header(0, producer_id=9, offset=32)._replace(attributes=1 << 5), 900)
    assert list(table.producers) == [7]
    assert table.original_of(header(0)) == 30
    assert table.producers[7].timestamp_ms_last == 500


def test_a_producer_of_old_records_is_silent_from_when_they_were_read_back_not_from_when_they_were_made() -> (
    None
):
    table = ProducerTable()
    table.replay(header(0, offset=30), 10_000)
    assert (table.expire(9_999), table.forget_idle(9_999, 10)) == (0, 0)
    rows = table.snapshot(Offset(31))
    assert rows == [[7, 0, 500, [[0, 0, 30]]]], "what is kept on the disk is as before"
    other = ProducerTable()
    other.restore({"producers": rows}, 20_000)
    other.cut(Offset(31))
    assert (other.expire(19_999), other.forget_idle(19_999, 10), other.forget_idle(20_001, 10)) == (0, 0, 1)


def test_silent_producers_expire_and_may_then_start_anywhere() -> None:
    table = table_of(header(0))
    table.note(header(0, producer_id=8), Offset(1), 5000)
    assert table.expire(1000) == 0
    assert table.expire(1001) == 1
    assert list(table.producers) == [8]
    assert table.original_of(header(55)) is None


@pytest.mark.parametrize(
    ("batch", "goes_on"),
    [
        (header(10, count=3), True),
        (header(11), False),
        (header(0, count=10), False),
        (header(10, epoch=1), False),
        (header(0, epoch=1), False),
        (header(10, producer_id=8), False),
    ],
)
def test_batch_that_plainly_goes_on_is_entered_like_any_other(batch: BatchHeader, goes_on: bool) -> None:
    quick, slow = ProducerTable(), ProducerTable()
    for table in (quick, slow):
        table.note(header(0, count=10), Offset(0), 5)
    count = batch.last_offset_delta + 1
    said = quick.go_on(
        batch.producer_id, batch.producer_epoch, batch.base_sequence, count, Offset(10), now_ms=6
    )
    assert said is goes_on
    if goes_on:
        slow.note(batch, Offset(10), 6)
    assert quick.snapshot(Offset(99)) == slow.snapshot(Offset(99))


def test_sequence_that_begins_anew_at_its_end_goes_on() -> None:
    table = ProducerTable()
    table.note(header(SEQUENCE_SPACE - 2, count=2), Offset(0), 5)
    assert table.go_on(7, 0, 0, 3, Offset(2), 6)
    assert table.producers[7].batches[-1][:3] == (0, 2, 2)
    assert not ProducerTable().go_on(7, 0, 0, 3, Offset(2), 6)
