"""When is a disk proven fast: many fast syncs in a row, more after each disappointment. When is the loop calm."""

import pytest

from anabranch.broker.write.sync_place import CALM_US_PER_TURN, FAST_US_MAX, PROOF_MAX, PROOF_MIN, SyncPlace

SLOW_US = FAST_US_MAX + 1


def note(place: SyncPlace, count: int, took_us: int = FAST_US_MAX, *, here: bool = False) -> None:
    for _ in range(count):
        place.note(took_us, here=here)


def proof_needed(place: SyncPlace) -> int:
    """How many fast syncs in a worker it takes now."""
    count = 0
    while not place.is_disk_fast:
        note(place, 1)
        count += 1
    return count


def test_disk_is_not_taken_for_fast_before_it_is_proven() -> None:
    place = SyncPlace()
    note(place, PROOF_MIN - 1)
    assert not place.is_disk_fast
    note(place, 1)
    assert place.is_disk_fast


def test_one_slow_sync_anywhere_begins_the_proof_anew() -> None:
    place = SyncPlace()
    note(place, PROOF_MIN)
    note(place, 1, SLOW_US)
    assert proof_needed(place) == PROOF_MIN


def test_proof_doubles_each_time_the_loop_was_held_up() -> None:
    place = SyncPlace()
    needed = []
    for _ in range(3):
        needed.append(proof_needed(place))
        note(place, 1, SLOW_US, here=True)
    assert needed == [PROOF_MIN, 2 * PROOF_MIN, 4 * PROOF_MIN]


def test_proof_has_a_limit() -> None:
    place = SyncPlace()
    note(place, 100, SLOW_US, here=True)
    assert proof_needed(place) == PROOF_MAX


def test_proof_halves_again_as_fast_syncs_here_go_on() -> None:
    place = SyncPlace()
    note(place, 2, SLOW_US, here=True)
    assert proof_needed(place) == 4 * PROOF_MIN
    note(place, 4 * PROOF_MIN, here=True)
    note(place, 1, SLOW_US)
    assert proof_needed(place) == 2 * PROOF_MIN


def test_proof_never_falls_below_its_least() -> None:
    place = SyncPlace()
    note(place, 100 * PROOF_MIN, here=True)
    note(place, 1, SLOW_US)
    assert proof_needed(place) == PROOF_MIN


@pytest.mark.parametrize(
    ("others", "since_us", "is_calm"),
    [
        (0, 1, True),
        (1, CALM_US_PER_TURN - 1, False),
        (1, CALM_US_PER_TURN, True),
        (2, 2 * CALM_US_PER_TURN - 1, False),
        (2, 2 * CALM_US_PER_TURN, True),
        (100, 100 * CALM_US_PER_TURN, True),
    ],
)
def test_loop_is_calm_without_other_turns_or_with_rare_ones(
    others: int, since_us: int, is_calm: bool
) -> None:
    place = SyncPlace()
    place.turns += 5
    place.is_loop_calm(1000)
    place.turns += others + 1
    assert place.is_loop_calm(1000 + since_us) is is_calm


def test_turn_without_a_socket_is_none_that_others_wanted() -> None:
    place = SyncPlace()
    place.is_loop_calm(1000)
    assert place.is_loop_calm(1001)
