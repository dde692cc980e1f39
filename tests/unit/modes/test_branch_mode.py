"""What is safe in a branch: what the primary has, and everybody whom it counts."""

from anabranch.modes.branch.mode import BranchMode
from anabranch.modes.mode import Appended, Flush, FlushFinished, Publish
from anabranch.values import BrokerId, Offset

ME, OTHER, THIRD = BrokerId(1), BrokerId(2), BrokerId(3)
START = Offset(1 << 32)


def at(number: int) -> Offset:
    return Offset(START + number)


def test_alone_what_is_written_is_safe_or_what_is_synced() -> None:
    mode = BranchMode(ME, Offset(0), sync_first=False)
    assert list(mode.begin(START, START)) == [Publish(START)]
    assert list(mode.step(Appended(at(3)), 0)) == [Publish(at(3))]
    mode = BranchMode(ME, Offset(0), sync_first=True)
    mode.begin(START, START)
    assert list(mode.step(Appended(at(3)), 0)) == [Flush(at(3))]
    assert mode.safe_offset() == START
    assert list(mode.step(FlushFinished(at(3)), 0)) == [Publish(at(3))]


def test_a_copy_that_counts_is_waited_for() -> None:
    mode = BranchMode(ME, Offset(7), sync_first=False)
    assert list(mode.begin(START, START, [OTHER, THIRD])) == []
    assert not mode.is_settled
    mode.step(Appended(at(5)), 0)
    assert list(mode.heard(OTHER, at(5))) == []
    assert list(mode.heard(THIRD, at(2))) == [Publish(at(2))]
    assert mode.is_settled
    assert list(mode.heard(THIRD, at(1))) == [], "nobody loses what it has"
    assert list(mode.count([OTHER])) == [Publish(at(5))]
    assert list(mode.heard(THIRD, at(9))) == [], "it does not count"


def test_a_copy_that_comes_later_moves_nothing_back() -> None:
    mode = BranchMode(ME, Offset(0), sync_first=False)
    mode.begin(START, START)
    mode.step(Appended(at(5)), 0)
    assert list(mode.count([OTHER])) == []
    assert mode.safe_offset() == at(5)
    assert list(mode.step(Appended(at(6)), 0)) == []


def test_between_reigns_nothing_becomes_safe_by_itself() -> None:
    mode = BranchMode(ME, Offset(0), sync_first=False)
    mode.begin(START, START)
    mode.end()
    assert mode.writer() is None
    assert list(mode.step(FlushFinished(at(4)), 0)) == []
    assert list(mode.follow(at(4))) == [Publish(at(4))]
    assert list(mode.follow(at(3))) == []
    mode.begin(Offset(9 << 32), Offset(9 << 32))
    assert mode.writer() == ME
