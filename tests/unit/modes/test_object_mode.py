"""`object`: what the quorum has agreed on is safe, and nothing else is."""

from anabranch.modes.mode import Appended, Publish
from anabranch.modes.object.mode import ObjectMode
from anabranch.values import BrokerId, Offset

ME = BrokerId(3)


def test_what_is_agreed_on_is_published() -> None:
    mode = ObjectMode(ME, Offset(4))
    assert mode.safe_offset() == 4
    assert list(mode.step(Appended(Offset(9)), 0)) == [Publish(Offset(9))]
    assert mode.safe_offset() == 9


def test_an_end_that_is_known_already_changes_nothing() -> None:
    mode = ObjectMode(ME, Offset(4))
    assert list(mode.step(Appended(Offset(4)), 0)) == []
    assert mode.safe_offset() == 4


def test_every_broker_writes_and_reads() -> None:
    mode = ObjectMode(ME, Offset(0))
    assert (mode.writer(), mode.reader(Offset(0))) == (ME, ME)
    assert mode.describe() == {"mode": "object", "safe_offset": 0}
