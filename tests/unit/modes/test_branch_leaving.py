"""What a broker does next so that a partition comes out of branches."""

import pytest

from anabranch.modes.branch.leaving import (
    AGAIN_MS,
    CALL_OFF_MS,
    OVERTAKE_MS,
    LeaveSight,
    LeaveStep,
    Promise,
    holds,
    next_leave_step,
)
from anabranch.values import BrokerId

ME, OTHER = BrokerId(1), BrokerId(2)
SIGHT = LeaveSight(ME, closer=None, is_primary=True, sees_all=True, has_asked=False, waited_ms=0)


@pytest.mark.parametrize(
    ("move", "is_bound"),
    [(-1, True), (6, True), (7, True), (8, False)],
    ids=["blank", "behind", "same", "later"],
)
def test_a_promise_binds_until_a_later_decision_is_known(move: int, is_bound: bool) -> None:
    assert holds(Promise(7, OTHER), move) == is_bound
    assert not holds(None, move)


def test_who_reigns_begins_once_everybody_is_there() -> None:
    assert next_leave_step(SIGHT) is LeaveStep.BEGIN
    assert next_leave_step(SIGHT._replace(sees_all=False, waited_ms=60_000)) is LeaveStep.WAIT
    assert next_leave_step(SIGHT._replace(is_primary=False)) is LeaveStep.WAIT


def test_who_is_agreed_to_close_does_and_goes_on_though_another_would_reign() -> None:
    mine = SIGHT._replace(closer=ME)
    assert next_leave_step(mine) is LeaveStep.CLOSE
    assert next_leave_step(mine._replace(is_primary=False)) is LeaveStep.CLOSE


def test_who_has_asked_for_the_end_closes_no_more_under_that_decision() -> None:
    asked = SIGHT._replace(closer=ME, has_asked=True)
    assert next_leave_step(asked) is LeaveStep.WAIT
    assert next_leave_step(asked._replace(waited_ms=AGAIN_MS)) is LeaveStep.BEGIN


@pytest.mark.parametrize("closer", [ME, OTHER])
def test_with_somebody_missing_an_attempt_is_called_off(closer: BrokerId) -> None:
    alone = SIGHT._replace(closer=closer, sees_all=False)
    assert next_leave_step(alone) is LeaveStep.WAIT
    assert next_leave_step(alone._replace(waited_ms=CALL_OFF_MS)) is LeaveStep.CALL_OFF


def test_another_is_given_time_and_then_overtaken_by_the_primary_alone() -> None:
    theirs = SIGHT._replace(closer=OTHER)
    assert next_leave_step(theirs) is LeaveStep.WAIT
    assert next_leave_step(theirs._replace(waited_ms=OVERTAKE_MS)) is LeaveStep.BEGIN
    assert next_leave_step(theirs._replace(waited_ms=OVERTAKE_MS, is_primary=False)) is LeaveStep.WAIT
