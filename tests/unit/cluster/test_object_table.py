"""What a cluster agrees on about the objects in its store, rule by rule."""

import uuid
from collections.abc import Sequence

import pytest

from anabranch.cluster.metadata.entries import broker_fenced_entry, broker_removed_entry, topic_removed_entry
from anabranch.cluster.metadata.table import MetadataTable
from anabranch.cluster.objects.entries import (
    Commit,
    commit_entry,
    forget_entry,
    incarnation_entry,
    over_entry,
    removed_entry,
    start_entry,
    tombstone_entry,
)
from anabranch.cluster.objects.table import Result
from anabranch.errors import (
    AnabranchError,
    CorruptDataError,
    InvalidRecordError,
    NotOwnerError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    StoreRefusedError,
    UnknownTopicOrPartitionError,
)
from anabranch.objects.layout.names import ObjectId, Row
from anabranch.record.batch import CONTROL
from anabranch.values import Offset
from support.object_cluster import (
    INCARNATION,
    NOW_MS,
    ONE,
    TOPIC,
    TWO,
    A,
    B,
    ObjectCluster,
    item,
    merged,
    row,
    sent,
    written,
)


def errors_of(results: Sequence[Result]) -> list[type[AnabranchError] | None]:
    return [None if result.error is None else type(result.error) for result in results]


@pytest.fixture
def cluster() -> ObjectCluster:
    return ObjectCluster()


# --- offsets ------------------------------------------------------------------------------------------------


def test_a_partition_never_written_to_has_a_head_of_zero(cluster):
    assert cluster.objects.head(A) == (0, 0, 0)
    assert cluster.objects.rows(A, Offset(0), 10) == []
    assert cluster.objects.row_at_time(A, 0) is None
    assert cluster.objects.producers(A).producers == {}


def test_items_get_their_offsets_in_the_order_of_the_log(cluster):
    first = cluster.commit(0, item(count=3), item(B, position=100, count=4))
    second = cluster.commit(0, item(count=5), broker=TWO, epoch=1)
    assert first == [Result(Offset(0)), Result(Offset(0))]
    assert second == [Result(Offset(3))]
    assert cluster.objects.head(A) == (0, 8, 200)
    assert cluster.objects.head(B) == (0, 4, 100)


def test_items_of_a_partition_whose_bytes_touch_are_one_row(cluster):
    cluster.commit(
        0,
        item(position=0, length=100, count=3, max_timestamp=900),
        item(position=100, length=50, count=2, max_timestamp=700),
        item(B, position=150, length=10, count=1),
        item(position=160, length=40, count=1),
    )
    assert cluster.all_rows() == [
        Row(Offset(0), Offset(5), written(0), 0, 150, 900, 2),
        Row(Offset(5), Offset(6), written(0), 160, 40, 1000, 1),
    ]
    assert cluster.all_rows(B) == [Row(Offset(0), Offset(1), written(0), 150, 10, 1000, 1)]


def test_a_refused_item_parts_the_rows_around_it(cluster):
    cluster.commit(
        0,
        sent(0, position=0),
        sent(50, position=100),  # A gap in the sequence.
        sent(10, position=200),
    )
    assert [(each.base_offset, each.next_offset, each.position) for each in cluster.all_rows()] == [
        (0, 10, 0),
        (10, 20, 200),
    ]


def test_several_objects_in_one_entry_count_one_after_the_other(cluster):
    commits = [Commit(0, [item(count=2)]), Commit(1, []), Commit(2, [item(count=3)])]
    cluster.apply(commit_entry(ONE, 0, NOW_MS, commits))
    assert cluster.objects.outcome == (ONE, 0, [[Result(Offset(0))], (), [Result(Offset(2))]])
    assert cluster.objects.last_number(ONE, 0) == 2


def test_the_outcome_is_that_of_the_last_entry_alone(cluster):
    cluster.commit(0, item())
    cluster.apply(start_entry({A: Offset(1)}))
    assert cluster.objects.outcome is None


def test_a_topic_in_another_mode_takes_nothing(cluster):
    other = uuid.UUID(int=8)
    cluster.add_topic("ring", other, mode="ring")
    unknown = uuid.UUID(int=9)
    results = cluster.commit(0, item((other, 0)), item((unknown, 0)), item((TOPIC, 2)), item(A))
    assert errors_of(results) == [NotOwnerError, *[UnknownTopicOrPartitionError] * 2, None]
    assert results[3].base_offset == 0
    assert cluster.objects.references(written(0)) == 1


def test_a_batch_without_records_gets_no_offsets(cluster):
    assert errors_of(cluster.commit(0, item(count=0))) == [InvalidRecordError]
    assert cluster.objects.head(A).end == 0


# --- who may commit, and which number ---------------------------------------------------------------------------


def test_commits_of_an_epoch_that_is_over_fail(cluster):
    cluster.commit(0, item())
    epoch = cluster.register(ONE)
    assert errors_of(cluster.commit(1, item(), item(B))) == [NotOwnerError] * 2
    assert cluster.objects.last_number(ONE, epoch) == -1
    assert cluster.commit(0, item(), epoch=epoch) == [Result(Offset(10))]


def test_a_fenced_broker_commits_nothing(cluster):
    cluster.apply(broker_fenced_entry(ONE, 0, is_fenced=True))
    assert errors_of(cluster.commit(0, item())) == [NotOwnerError]
    cluster.apply(broker_fenced_entry(ONE, 0, is_fenced=False))
    assert cluster.commit(0, item()) == [Result(Offset(0))]


def test_a_broker_that_has_left_commits_nothing(cluster):
    cluster.apply(broker_removed_entry(ONE))
    assert errors_of(cluster.commit(0, item())) == [NotOwnerError]


def test_nothing_is_committed_before_the_objects_have_names():
    cluster = ObjectCluster()
    cluster.objects.incarnation = None
    assert errors_of(cluster.commit(0, item())) == [NotOwnerError]


def test_only_the_first_incarnation_counts(cluster):
    cluster.apply(incarnation_entry(99))
    assert cluster.objects.incarnation == INCARNATION


def test_a_number_that_had_its_turn_is_ignored(cluster):
    cluster.commit(0, item())
    assert cluster.commit(0, item()) == ()
    assert cluster.objects.head(A).end == 10
    assert cluster.objects.references(written(0)) == 1


def test_a_number_that_comes_too_early_is_refused_as_a_whole(cluster):
    assert errors_of(cluster.commit(1, item(), item(B))) == [NotOwnerError] * 2
    assert cluster.objects.last_number(ONE, 0) == -1
    assert cluster.objects.head(A).end == 0


def test_behind_a_number_that_fails_later_ones_fail_too(cluster):
    cluster.apply(commit_entry(ONE, 0, NOW_MS, [Commit(1, [item()]), Commit(2, [item()])]))
    assert cluster.objects.outcome is not None
    assert [errors_of(each) for each in cluster.objects.outcome.results] == [[NotOwnerError], [NotOwnerError]]


def test_numbers_of_two_brokers_do_not_meet(cluster):
    cluster.commit(0, item())
    assert cluster.commit(0, item(), broker=TWO, epoch=1) == [Result(Offset(10))]
    assert (cluster.objects.last_number(ONE, 0), cluster.objects.last_number(TWO, 1)) == (0, 0)
    assert cluster.objects.last_number(ONE, 1) == -1


# --- producers ----------------------------------------------------------------------------------------------


def test_a_repeat_is_answered_with_its_first_offset(cluster):
    cluster.commit(0, item(count=4), sent(0, position=100))
    assert cluster.commit(0, sent(0), broker=TWO, epoch=1) == [Result(Offset(4), None, True)]
    assert cluster.objects.head(A).end == 14
    assert list(cluster.objects.unreferenced()) == [written(0, epoch=1)]


def test_a_producer_that_nobody_knows_begins_with_its_first_batch(cluster):
    assert errors_of(cluster.commit(0, sent(10))) == [OutOfOrderSequenceError]
    assert cluster.commit(1, sent(0)) == [Result(Offset(0))]


def test_a_gap_and_an_old_epoch_are_refused(cluster):
    cluster.commit(0, sent(0, producer_epoch=3))
    assert errors_of(cluster.commit(1, sent(20, producer_epoch=3))) == [OutOfOrderSequenceError]
    assert errors_of(cluster.commit(2, sent(10, producer_epoch=2))) == [ProducerFencedError]
    assert cluster.objects.head(A).end == 10


def test_a_control_batch_has_no_sequence(cluster):
    marker = sent(-1, count=1, attributes=CONTROL)
    assert cluster.commit(0, marker) == [Result(Offset(0))]
    assert cluster.objects.producers(A).producers == {}


def test_the_time_of_a_producer_is_that_of_the_entry(cluster):
    cluster.commit(0, sent(0), now_ms=777)
    assert cluster.objects.producers(A).producers[5].timestamp_ms_last == 777


def test_a_silent_producer_is_forgotten_by_name(cluster):
    cluster.commit(0, sent(0, producer_id=5), sent(0, producer_id=6, position=100))
    cluster.apply(forget_entry({A: [5, 99], B: [6]}))
    assert list(cluster.objects.producers(A).producers) == [6]


def test_a_producer_goes_on_in_another_topic_after_the_one_it_wrote_to_was_deleted(cluster):
    cluster.commit(0, sent(0, producer_id=5))
    cluster.objects.remove_topic(A[0], 4)
    assert cluster.commit(1, sent(10, producer_id=5)) == [Result(Offset(0))]
    assert errors_of(cluster.commit(2, sent(10, producer_id=6))) == [OutOfOrderSequenceError]


def test_a_producer_that_may_have_been_forgotten_goes_on_where_it_was(cluster):
    cluster.commit(0, sent(0, producer_id=5))
    cluster.apply(forget_entry({A: [5]}))
    assert cluster.commit(1, sent(10, producer_id=5)) == [Result(Offset(10))]
    assert errors_of(cluster.commit(2, sent(10, producer_id=6))) == [OutOfOrderSequenceError]


# --- rows ---------------------------------------------------------------------------------------------------


def test_rows_begin_with_the_one_that_holds_the_offset(cluster):
    for number in range(5):
        cluster.commit(number, item(count=10))
    rows = cluster.all_rows()
    assert cluster.objects.rows(A, Offset(20), 2) == rows[2:4]
    assert cluster.objects.rows(A, Offset(29), 9) == rows[2:]
    assert cluster.objects.rows(A, Offset(50), 9) == []
    assert cluster.objects.row_count(A) == 5


def test_the_row_of_a_time_is_the_first_that_reaches_it(cluster):
    for number, time in enumerate([100, 500, 300, 600]):
        cluster.commit(number, item(max_timestamp=time))
    rows = cluster.all_rows()
    found = [cluster.objects.row_at_time(A, time) for time in (0, 100, 101, 500, 501, 601)]
    assert found == [rows[0], rows[0], rows[1], rows[1], rows[3], None]


# --- the start ----------------------------------------------------------------------------------------------


def test_rows_wholly_below_the_start_go_and_the_one_that_holds_it_stays(cluster):
    for number in range(4):
        cluster.commit(number, item(count=10))
    cluster.apply(start_entry({A: Offset(25)}))
    assert cluster.objects.head(A) == (25, 40, 200)
    assert [each.base_offset for each in cluster.all_rows()] == [20, 30]
    assert list(cluster.objects.unreferenced()) == [written(0), written(1)]


def test_a_start_never_goes_back_nor_beyond_the_end(cluster):
    cluster.commit(0, item(count=10))
    cluster.apply(start_entry({A: Offset(6)}))
    cluster.apply(start_entry({A: Offset(2), B: Offset(3)}))
    assert cluster.objects.head(A).start == 6
    cluster.apply(start_entry({A: Offset(99)}))
    assert cluster.objects.head(A) == (10, 10, 0)
    assert cluster.commit(1, item()) == [Result(Offset(10))]


# --- replacing ----------------------------------------------------------------------------------------------


def three_rows(cluster: ObjectCluster) -> list[Row]:
    for number in range(3):
        cluster.commit(number, item(count=10))
    return cluster.all_rows()


def test_rows_that_are_as_they_were_read_are_replaced(cluster):
    rows = three_rows(cluster)
    whole = row(merged(0), 0, 20, length=150)
    cluster.replace(rows[:2], [whole])
    assert cluster.all_rows() == [whole, rows[2]]
    assert cluster.objects.head(A) == (0, 30, 250)
    assert list(cluster.objects.unreferenced()) == [written(0), written(1)]
    assert cluster.objects.references(merged(0)) == 1


def test_compaction_may_leave_gaps_or_nothing(cluster):
    rows = three_rows(cluster)
    kept = row(merged(0), 13, 15)
    cluster.replace(rows[:2], [kept])
    assert cluster.objects.rows(A, Offset(2), 1) == [kept]
    cluster.replace([kept], [])
    assert cluster.all_rows() == [rows[2]]
    assert cluster.objects.head(A) == (0, 30, 100)


def test_rows_that_have_changed_meanwhile_are_left_alone(cluster):
    rows = three_rows(cluster)
    cluster.apply(start_entry({A: Offset(10)}))
    cluster.replace(rows[:2], [row(merged(0), 0, 20)])
    assert cluster.all_rows() == rows[1:]
    assert merged(0) in cluster.objects.unreferenced()


@pytest.mark.parametrize(
    "new",
    [
        [(0, 21)],
        [(0, 10), (5, 20)],
        [(10, 20), (0, 10)],
        [(5, 5)],
    ],
)
def test_new_rows_keep_to_the_offsets_of_the_old_ones(cluster, new):
    rows = three_rows(cluster)
    cluster.replace(rows[:2], [row(merged(0), *each) for each in new])
    assert cluster.all_rows() == rows


def test_a_broker_of_another_epoch_replaces_nothing(cluster):
    rows = three_rows(cluster)
    cluster.replace(rows[:1], [row(merged(0, 9), 0, 10)], epoch=9)
    assert cluster.all_rows() == rows


def test_a_replacement_without_old_rows_changes_nothing(cluster):
    rows = three_rows(cluster)
    cluster.replace([], [row(merged(0), 0, 10)])
    assert cluster.all_rows() == rows


def test_a_tombstoned_object_replaces_nothing(cluster):
    rows = three_rows(cluster)
    cluster.apply(tombstone_entry([merged(4)], NOW_MS))
    cluster.replace(rows[:1], [row(merged(4), 0, 10)])
    assert cluster.all_rows() == rows


def test_an_object_that_was_removed_long_ago_replaces_nothing(cluster):
    rows = three_rows(cluster)
    cluster.apply(tombstone_entry([merged(4)], NOW_MS))
    cluster.apply(removed_entry([merged(4)]))
    cluster.replace(rows[:1], [row(merged(4), 0, 10)])
    assert cluster.all_rows() == rows
    cluster.replace(rows[:1], [row(merged(5), 0, 10)])
    assert cluster.all_rows() != rows


def test_an_object_of_another_epoch_that_nobody_knows_replaces_nothing(cluster):
    rows = three_rows(cluster)
    cluster.replace(rows[:1], [row(merged(0, epoch=1), 0, 10)])
    cluster.replace(rows[:1], [row(written(77), 0, 10)])
    assert cluster.all_rows() == rows


def test_an_object_that_is_named_already_may_be_named_again(cluster):
    rows = three_rows(cluster)
    cluster.commit(3, item(B, count=10))
    cluster.replace(rows[:1], [row(merged(0), 0, 10)])
    cluster.apply(tombstone_entry([merged(1)], NOW_MS))  # Newer ones are gone already.
    cluster.replace(cluster.all_rows(B), [row(merged(0), 0, 10, position=100)], key=B)
    assert cluster.objects.references(merged(0)) == 2


# --- tombstones ---------------------------------------------------------------------------------------------


def test_an_object_that_a_row_names_is_not_tombstoned(cluster):
    cluster.commit(0, item(), item(B, position=100))
    cluster.apply(start_entry({A: Offset(10)}))
    cluster.apply(tombstone_entry([written(0)], NOW_MS))
    assert not cluster.objects.is_tombstoned(written(0))
    cluster.apply(start_entry({B: Offset(10)}))
    cluster.apply(tombstone_entry([written(0)], NOW_MS))
    assert cluster.objects.is_tombstoned(written(0))
    assert dict(cluster.objects.tombstones) == {written(0): NOW_MS}
    assert list(cluster.objects.unreferenced()) == []


def test_an_object_that_a_late_commit_may_name_is_not_tombstoned(cluster):
    cluster.commit(0, item())
    cluster.apply(tombstone_entry([written(1)], NOW_MS))
    assert not cluster.objects.is_tombstoned(written(1))
    assert cluster.commit(1, item()) == [Result(Offset(10))]


def test_an_object_that_was_given_up_is_tombstoned(cluster):
    cluster.commit(0)
    cluster.apply(tombstone_entry([written(0)], NOW_MS))
    assert cluster.objects.is_tombstoned(written(0))


def test_an_object_of_an_epoch_that_is_over_is_tombstoned_whatever_its_number(cluster):
    cluster.register(ONE)
    cluster.apply(tombstone_entry([written(5)], NOW_MS))
    assert cluster.objects.is_tombstoned(written(5))


def test_an_object_of_an_earlier_life_of_the_cluster_is_tombstoned(cluster):
    old = ObjectId(1, 0, 5)
    cluster.apply(tombstone_entry([old], NOW_MS))
    assert cluster.objects.is_tombstoned(old)


def test_a_second_tombstone_does_not_begin_the_wait_again(cluster):
    cluster.apply(tombstone_entry([merged(0)], 1))
    cluster.apply(tombstone_entry([merged(0)], 2))
    assert cluster.objects.tombstones[merged(0)] == 1


def test_a_removed_object_is_forgotten(cluster):
    cluster.apply(tombstone_entry([merged(0)], NOW_MS))
    cluster.apply(removed_entry([merged(0), merged(1)]))
    assert dict(cluster.objects.tombstones) == {}


# --- topics and entries that make no sense -----------------------------------------------------------------------


def test_the_objects_of_a_removed_topic_are_nobody_s(cluster):
    cluster.commit(0, item(), item(B, position=100))
    cluster.commit(1, item())
    cluster.apply(topic_removed_entry("events"))
    assert cluster.objects.head(A) == (0, 0, 0)
    assert set(cluster.objects.unreferenced()) == {written(0), written(1)}
    assert cluster.objects.references(written(0)) == 0
    assert errors_of(cluster.commit(2, item())) == [UnknownTopicOrPartitionError]


def test_an_entry_that_makes_no_sense_is_corrupt_and_changes_nothing(cluster):
    entry = commit_entry(ONE, 0, NOW_MS, [Commit(0, [item()]), Commit(1, [item()])])
    spoiled = {**entry, "commits": [entry["commits"][0], {**entry["commits"][1], "items": "AAAA"}]}
    with pytest.raises(CorruptDataError, match="does not fit"):
        cluster.table.apply(spoiled, cluster.end)
    assert cluster.objects.last_number(ONE, 0) == -1
    with pytest.raises(CorruptDataError, match="newer version"):
        cluster.table.apply({"type": "objects-unheard-of"}, cluster.end)


def test_a_table_without_objects_makes_none(cluster):
    table = MetadataTable()
    assert not table.has_objects
    assert cluster.table.has_objects


def test_newest_row_is_the_first_of_the_largest_time(cluster):
    for number, time in enumerate([100, 500, 500, 300]):
        cluster.commit(number, item(max_timestamp=time))
    assert cluster.objects.newest_row(A) == cluster.all_rows()[1]
    assert cluster.objects.newest_row(B) is None


def test_time_of_a_row_is_never_that_of_no_record(cluster):
    cluster.commit(0, item(max_timestamp=-1))
    assert cluster.all_rows()[0].max_timestamp == -1


def test_a_life_that_is_over_takes_nothing_more() -> None:
    cluster = ObjectCluster()
    (first,) = cluster.commit(0, item())
    cluster.apply(over_entry(77))
    (refused,) = cluster.commit(1, item())
    assert first.error is None
    assert isinstance(refused.error, StoreRefusedError)
    assert cluster.objects.head(A).end == 10
    assert cluster.objects.last_number(ONE, 0) == 1, "whoever waits for this number goes on"
    again = MetadataTable()
    again.restore(cluster.table.snapshot())
    assert again.objects.successor == 77
