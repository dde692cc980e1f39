"""The history checker catches each kind of violation, and nothing where there is none."""

import dataclasses

import pytest

from chaos.history import History, Outcome, Read, Sent, Watermark, check, counts, report

YES, NO, OPEN = Outcome.ACKNOWLEDGED, Outcome.FAILED, Outcome.UNKNOWN


def sent(number, outcome=YES, offset=None, producer="p", partition=0):
    return Sent(
        producer, number, partition, b"%s-%d" % (producer.encode(), number), number * 10, outcome, offset
    )


def logged(*values, partition=0, consumer="final"):
    return [Read(consumer, partition, offset, value.encode()) for offset, value in enumerate(values)]


def kinds(**changes):
    """The violations of a good history that was changed in one way."""
    good = History(
        sends=[sent(0, YES, 0), sent(1, OPEN), sent(2, YES, 2), sent(3, NO), sent(4, OPEN)],
        reads=[Read("c1", 0, 0, b"p-0"), Read("c2", 0, 0, b"p-0"), Read("c1", 0, 2, b"p-2")],
        final=logged("p-0", "p-1", "p-2"),
        watermarks=[Watermark(0, 0, 5, 1), Watermark(0, 10, 15, 3), Watermark(1, 20, 25, 0)],
    )
    return counts(check(dataclasses.replace(good, **changes)))


def test_good_history_has_no_violation():
    assert kinds() == {}
    assert report([]) == "no violation"


def test_acknowledged_record_that_is_not_there_is_lost():
    assert kinds(final=logged("p-0", "p-1"), reads=[]) == {"lost": 1}


def test_unknown_record_may_be_there_or_not():
    assert kinds(sends=[sent(0, YES, 0), sent(1, OPEN), sent(2, YES, 2), sent(4, OPEN)]) == {}


def test_record_in_another_partition_than_acknowledged_is_lost():
    elsewhere = [*logged("p-0", "p-1"), Read("final", 1, 0, b"p-2")]
    assert kinds(final=elsewhere, reads=[])["lost"] == 1


def test_record_at_another_offset_than_acknowledged_has_moved():
    assert kinds(final=logged("p-0", "p-2"), sends=[sent(0, YES, 0), sent(2, YES, 2)], reads=[]) == {
        "moved": 1
    }


def test_offset_that_two_sends_were_told_was_given_twice():
    sends = [sent(0, YES, 0), sent(1, YES, 0), sent(2, YES, 2)]
    assert kinds(sends=sends)["offset-reused"] == 1


def test_same_offset_in_two_partitions_is_no_reuse():
    sends = [sent(0, YES, 0), sent(1, YES, 0, partition=1)]
    final = [*logged("p-0"), *logged("p-1", partition=1)]
    assert kinds(sends=sends, final=final, reads=[]) == {}


def test_offset_read_with_two_values_was_rewritten():
    reads = [Read("c1", 0, 1, b"p-4")]
    assert kinds(reads=reads) == {"rewritten": 1}


def test_two_consumers_that_disagree_are_caught_without_the_end():
    reads = [Read("c1", 0, 1, b"p-1"), Read("c2", 0, 1, b"p-4")]
    assert kinds(reads=reads) == {"rewritten": 1}


def test_record_that_a_group_went_past_unread_was_missed():
    assert kinds(is_read_by_group=True) == {"missed": 1}
    reads = [Read("c1", 0, 0, b"p-0"), Read("c2", 0, 1, b"p-1")]
    assert kinds(is_read_by_group=True, reads=reads) == {}


def test_record_that_was_read_and_is_gone_was_withdrawn():
    reads = [Read("c1", 0, 3, b"p-4"), Read("c2", 0, 3, b"p-4")]
    assert kinds(reads=reads) == {"withdrawn": 1}


def test_value_that_nobody_sent_was_invented():
    assert kinds(final=logged("p-0", "p-1", "p-2", "q-9")) == {"invented": 1}


def test_refused_record_that_is_there_is_caught():
    assert kinds(final=logged("p-0", "p-1", "p-2", "p-3")) == {"refused-but-kept": 1}


def test_record_that_is_there_twice_is_a_duplicate():
    assert kinds(final=logged("p-0", "p-1", "p-2", "p-1")) == {"duplicate": 1}


def test_record_that_is_also_in_another_partition_is_a_duplicate():
    assert kinds(final=[*logged("p-0", "p-1", "p-2"), *logged("p-1", partition=1)]) == {"duplicate": 1}


def test_records_in_another_order_than_sent_are_caught():
    sends = [sent(0, YES, 0), sent(1, YES, 2), sent(2, YES, 1)]
    assert kinds(sends=sends, final=logged("p-0", "p-2", "p-1"), reads=[]) == {"order": 1}


def test_order_of_two_producers_is_free():
    sends = [sent(5, YES, 0, producer="a"), sent(0, YES, 1, producer="b"), sent(6, YES, 2, producer="a")]
    assert kinds(sends=sends, final=logged("a-5", "b-0", "a-6"), reads=[]) == {}


def test_producer_without_idempotence_may_repeat_and_overtake():
    sends = [sent(0, YES, 1), sent(1, YES, 0)]
    final = logged("p-1", "p-0", "p-1")
    assert kinds(sends=sends, final=final, reads=[], careless=frozenset("p")) == {}
    assert kinds(sends=sends, final=final, reads=[]) == {"order": 1, "duplicate": 1}


def test_high_watermark_that_went_back_is_caught():
    assert kinds(watermarks=[Watermark(0, 0, 5, 3), Watermark(0, 10, 15, 2)]) == {"watermark-back": 1}


def test_new_leader_that_knows_less_than_the_old_one_is_caught():
    looks = [Watermark(0, 0, 5, 3, generation=1), Watermark(0, 10, 15, 2, generation=2)]
    assert kinds(watermarks=looks) == {"watermark-back": 1}


@pytest.mark.parametrize(
    "looks",
    [
        [Watermark(0, 0, 15, 2), Watermark(0, 10, 12, 3)],
        [Watermark(0, 0, 5, 3), Watermark(1, 10, 15, 2)],
        [Watermark(0, 0, 5, 3), Watermark(0, 10, 15, 3)],
        [Watermark(0, 0, 5, 3, generation=2), Watermark(0, 10, 15, 2, generation=1)],
    ],
    ids=["at the same time", "of another partition", "unchanged", "of a leader that was replaced"],
)
def test_watermark_that_may_be_lower_is_not_caught(looks):
    assert kinds(watermarks=looks) == {}


def test_value_sent_twice_is_refused_because_it_names_nothing():
    with pytest.raises(AssertionError, match="must name its record"):
        check(History(sends=[sent(0), sent(0)]))


def test_report_shows_the_number_and_a_few_examples():
    violations = check(History(sends=[sent(number, YES, number) for number in range(9)]))
    text = report(violations)
    assert text.startswith("lost: 9\n  p number 0 (acknowledged at 0/0")
    assert text.count("\n") == 5
