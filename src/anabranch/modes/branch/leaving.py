"""How a partition comes out of branches: what a broker does next, as far as it can see, and what a promise binds.

    leave  agreed on: who closes it, and all who are registered
    ask everybody > each promises, on its disk, to open no branch more, and says where its line ends
    take in what is not in one's own line > end it > those who keep copies have all of it, and say so on their disks
    left   agreed on: from here on those keep it

A promise holds until the table knows another decision than the one it was given for. So whoever has been left alone
with a promise, because the one who closes is gone, has a decision agreed on that nobody closes, and is free.
"""

from enum import Enum
from typing import NamedTuple

from anabranch.values import BrokerId

CALL_OFF_MS = 1000
"""An attempt is given up if somebody is missing so long after it began."""
AGAIN_MS = 1000
"""Who has asked for the end, and does not hear of it, tries anew after so long."""
OVERTAKE_MS = 6000
"""After so long another tries."""


class Promise(NamedTuple):
    """To open no branch of a partition any more, under this decision, but for whoever it was given to."""

    move: int
    to: BrokerId


def holds(promise: Promise | None, move: int) -> bool:
    """`move`: the last decision that this broker knows. One before the promise is a table that is behind."""
    return promise is not None and move <= promise.move


class LeaveStep(Enum):
    WAIT = 0
    BEGIN = 1
    """Have it agreed on that this broker closes."""
    CLOSE = 2
    CALL_OFF = 3


class LeaveSight(NamedTuple):
    """What there is to see of a partition that shall come out of branches."""

    me: BrokerId
    closer: BrokerId | None
    """Who is agreed to close it now."""
    is_primary: bool
    """This broker reigns, or would if it were free to."""
    sees_all: bool
    """All who are registered are in view."""
    has_asked: bool
    """It has asked for the end already, and has not heard what became of that."""
    waited_ms: int
    """Since the present decision was heard of."""


def next_leave_step(sight: LeaveSight) -> LeaveStep:
    is_closer = sight.closer == sight.me
    if not sight.is_primary and not is_closer:
        return LeaveStep.WAIT
    if not sight.sees_all:
        is_due = sight.closer is not None and sight.waited_ms >= CALL_OFF_MS
        return LeaveStep.CALL_OFF if is_due else LeaveStep.WAIT
    if is_closer and not sight.has_asked:
        return LeaveStep.CLOSE
    patience_ms = AGAIN_MS if is_closer else OVERTAKE_MS
    is_free = sight.closer is None or sight.waited_ms >= patience_ms
    return LeaveStep.BEGIN if is_free else LeaveStep.WAIT
