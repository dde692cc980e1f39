"""Which batches of a producer are new to a branch, which are repeats, and which have to come again."""

import pytest

from anabranch.errors import NotOwnerError, OutOfOrderSequenceError, ProducerFencedError
from anabranch.record.lane_producers import LaneProducers
from anabranch.values import Offset

LANE = Offset(5 << 32)


class Header:
    def __init__(
        self, first: int, *, crc: int = 1, epoch: int = 0, producer: int = 7, count: int = 10
    ) -> None:
        self.producer_id = producer
        self.producer_epoch = epoch
        self.base_sequence = first
        self.last_sequence = first + count - 1
        self.crc = crc


def table(*, takes_gaps: bool = True, lane_start: Offset = LANE) -> LaneProducers:
    producers = LaneProducers(lane_start)
    producers.takes_gaps = takes_gaps
    return producers


def written(producers: LaneProducers, offset: int, header: Header) -> None:
    producers.note(header, Offset(offset), 0)


def test_a_producer_that_was_elsewhere_meanwhile_may_skip_and_go_back() -> None:
    producers = table()
    written(producers, LANE, Header(240))
    assert producers.original_of(Header(366)) is None
    written(producers, LANE + 10, Header(366))
    assert producers.original_of(Header(250)) is None, "it was refused elsewhere, and has to be somewhere"


def test_what_is_remembered_is_a_repeat_wherever_it_was_written_first() -> None:
    producers = table()
    written(producers, 100, Header(0, crc=8))
    written(producers, LANE, Header(10))
    assert producers.original_of(Header(0, crc=8)) == 100
    assert producers.original_of(Header(10)) == LANE
    assert producers.original_of(Header(0, crc=9)) is None, "other records have the same numbers"


def test_the_greatest_numbers_are_remembered_in_whatever_order_they_came() -> None:
    producers = table()
    for first in (50, 10, 40, 0, 30, 20):
        written(producers, first, Header(first))
    assert [producers.original_of(Header(first)) for first in (10, 20, 30, 40, 50)] == [10, 20, 30, 40, 50]


def test_nothing_overtakes_while_a_reign_begins() -> None:
    producers = table(takes_gaps=False)
    written(producers, 100, Header(0))
    with pytest.raises(NotOwnerError, match="from 10 to 20"):
        producers.original_of(Header(20))
    assert producers.original_of(Header(10)) is None
    with pytest.raises(NotOwnerError):
        producers.original_of(Header(10, producer=8))
    assert producers.original_of(Header(0, producer=8)) is None


def test_a_later_epoch_takes_over_and_an_earlier_one_is_fenced() -> None:
    producers = table()
    written(producers, LANE, Header(0, epoch=2))
    assert producers.original_of(Header(30, epoch=3)) is None
    with pytest.raises(ProducerFencedError):
        producers.original_of(Header(10, epoch=1))


def test_a_node_alone_has_the_usual_rules() -> None:
    producers = table(lane_start=Offset(0))
    written(producers, 0, Header(0))
    with pytest.raises(OutOfOrderSequenceError):
        producers.original_of(Header(20))
