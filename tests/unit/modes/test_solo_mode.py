"""The smallest mode: safe when written, or when synced."""

from anabranch.modes.mode import Appended, Flush, FlushFinished, Publish
from anabranch.modes.solo import SoloMode
from anabranch.values import BrokerId, Offset


def mode(sync_first: bool, safe: int = 0) -> SoloMode:
    return SoloMode(BrokerId(3), Offset(safe), sync_first=sync_first)


def test_written_is_safe_without_sync_first() -> None:
    solo = mode(False)
    assert solo.step(Appended(Offset(4)), 0) == [Publish(Offset(4))]
    assert solo.safe_offset() == 4


def test_with_sync_first_an_append_asks_for_a_flush_and_is_not_safe() -> None:
    solo = mode(True)
    assert solo.step(Appended(Offset(4)), 0) == [Flush(Offset(4))]
    assert solo.safe_offset() == 0


def test_flush_makes_safe_what_it_covered_and_no_more() -> None:
    solo = mode(True)
    solo.step(Appended(Offset(4)), 0)
    solo.step(Appended(Offset(6)), 0)
    assert solo.step(FlushFinished(Offset(4)), 0) == [Publish(Offset(4))]
    assert solo.safe_offset() == 4


def test_flush_of_what_is_safe_already_publishes_nothing() -> None:
    solo = mode(False)
    solo.step(Appended(Offset(4)), 0)
    assert solo.step(FlushFinished(Offset(4)), 0) == []
    assert solo.step(FlushFinished(Offset(3)), 0) == []
    assert solo.safe_offset() == 4


def test_this_broker_writes_and_reads_everything() -> None:
    solo = mode(True, safe=9)
    assert (solo.writer(), solo.reader(Offset(0)), solo.safe_offset()) == (3, 3, 9)


def test_describes_itself() -> None:
    assert mode(True, safe=9).describe() == {"mode": "solo", "safe_offset": 9, "sync_first": True}
