"""A ring that lost too much: who may go on, with whose log, and what is lost by it."""

import pytest

from anabranch.modes.generations import Generations, Row
from anabranch.modes.ring.effects import Kept, Remember
from anabranch.modes.ring.recovery import (
    Seen,
    best_of,
    can_lead_again,
    given_up,
    gone_for_good,
    last_generation,
)
from anabranch.modes.ring.replica import RingReplica
from anabranch.values import BrokerId, Generation, Offset
from support.ring_move_world import RingMoveWorld

B1, B2, B3 = BrokerId(1), BrokerId(2), BrokerId(3)
RING = (B1, B2, B3)


def table(*rows: tuple[int, int]) -> Generations:
    return Generations([Row(Generation(generation), Offset(start)) for generation, start in rows])


def seen(
    end: int,
    *rows: tuple[int, int],
    promised: int = 0,
    start: int = 0,
    safe: int = 0,
    is_trusted: bool = True,
    is_led: bool = False,
) -> Seen:
    return Seen(
        0,
        Generation(promised),
        table(*rows),
        Offset(start),
        Offset(end),
        Offset(safe),
        is_trusted,
        is_led,
    )


BLANK = seen(0, is_trusted=False)
WHOLE = seen(9, (1, 0))


@pytest.mark.parametrize(
    ("replicas", "answers", "can"),
    [
        (RING, {B1: WHOLE, B2: WHOLE}, True),
        (RING, {B2: WHOLE, B3: WHOLE}, True),
        (RING, {B1: WHOLE, B2: BLANK, B3: BLANK}, False),
        (RING, {B1: WHOLE}, False),
        (RING, {B3: WHOLE}, False),
        (RING, {B1: BLANK, B2: BLANK, B3: WHOLE}, False),
        (RING, {B3: seen(9, (1, 0), is_led=True)}, True),
        (RING, {}, False),
        ((B1, B2), {B1: WHOLE, B2: BLANK}, True),
        ((B1, B2), {B1: WHOLE}, False),
        ((B1, B2), {B1: BLANK, B2: BLANK}, False),
        ((B1,), {B1: WHOLE}, True),
        ((B1,), {B1: BLANK}, False),
    ],
)
def test_whether_those_who_answer_get_a_leader_by_themselves(
    replicas: tuple[BrokerId, ...], answers: dict[BrokerId, Seen], can: bool
) -> None:
    assert can_lead_again(replicas, answers) is can


def test_the_last_generation_counts_before_the_end_and_both_before_trust() -> None:
    longer = seen(20, (1, 0))
    later = seen(12, (1, 0), (4, 10), is_trusted=False)
    assert best_of(RING, {B1: longer, B2: later, B3: BLANK}) == B2
    assert best_of(RING, {B1: WHOLE, B3: longer}) == B3
    doubted = seen(9, (1, 0), is_trusted=False)
    assert best_of(RING, {B1: doubted, B3: WHOLE}) == B3
    assert best_of(RING, {B3: WHOLE, B2: WHOLE}) == B2
    assert last_generation([seen(1, (3, 0), promised=8), seen(1, (9, 0), promised=2)]) == 9


def test_what_is_given_up_and_what_is_gone() -> None:
    best = seen(12, (1, 0), (4, 10))
    assert given_up(best, seen(20, (1, 0))) == (10, 20)
    assert given_up(best, seen(20, (1, 0), start=15)) == (15, 20)
    assert given_up(best, seen(8, (1, 0))) is None
    assert given_up(best, BLANK) is None
    assert gone_for_good(best, [best, seen(0, safe=15)]) == (12, 15)
    assert gone_for_good(best, [best, seen(0, safe=12)]) is None


def test_a_forced_view_is_trusted_by_who_is_in_it_and_an_ordinary_one_is_not() -> None:
    for is_forced in (False, True):
        kept = Kept(Generation(5), table((1, 0), (5, 7)), return_id="back", view=2)
        one = RingReplica(B2, RING, kept, Offset(9), fits=lambda start, end: end)
        effects = list(one.enter_view(3, (B2,), Generation(6), 100, is_forced=is_forced))
        remembered = [effect.kept for effect in effects if isinstance(effect, Remember)]
        assert remembered[-1].is_trusted is is_forced
        list(one.tick(200))
        assert (one.leader is not None) is is_forced
        if one.leader is not None:
            assert one.generation > 6
            assert one.may_write


@pytest.mark.parametrize("seed", range(12))
def test_two_disks_are_lost_and_everything_that_the_third_had_goes_on(seed: int) -> None:
    world = RingMoveWorld(seed, wipes=False)
    world.trouble(120)
    world.calm()
    if len(world.view[1]) < 3:
        world.target = (1, 2, 3)
        world.agreed.append(("aim", world.target))
    world.calm()
    replicas = world.view[1]
    survivor = replicas[seed % 3]
    for broker in replicas:
        if broker != survivor:
            world.lose_disk(broker)
    world.run(world.now_ms + 30_000)
    assert all(not leads(world, broker) for broker in replicas), "rule 7 lets nobody lead"
    world.force(survivor, replicas)
    world.calm()  # It checks every acknowledged record, and that all three are equal and trusted.
    assert set(world.view[1]) == set(replicas)


def leads(world: RingMoveWorld, broker: int) -> bool:
    replica = world.machines[broker].replica
    return replica is not None and replica.leader is not None
