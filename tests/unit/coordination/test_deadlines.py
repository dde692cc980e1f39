"""Deadlines that mostly move later."""

import random

from anabranch.coordination.groups.deadlines import Deadlines


def test_the_soonest_deadline_comes_first() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("late", 20)
    deadlines.set("soon", 10)
    assert deadlines.next_ms() == 10
    assert deadlines.pop_due(9) is None
    assert [deadlines.pop_due(30), deadlines.pop_due(30), deadlines.pop_due(30)] == ["soon", "late", None]


def test_a_deadline_can_move_later_and_sooner() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", 10)
    deadlines.set("a", 50)
    assert deadlines.pop_due(49) is None
    deadlines.set("a", 20)
    assert deadlines.next_ms() == 20
    assert deadlines.pop_due(20) == "a"
    assert deadlines.next_ms() is None


def test_a_cancelled_deadline_never_comes() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", 10)
    deadlines.cancel("a")
    assert deadlines.next_ms() is None


def test_a_heartbeat_does_not_grow_the_heap() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for now_ms in range(10_000):
        deadlines.set("a", now_ms + 100)
    assert len(deadlines._heap) == 1


def test_cancelled_keys_are_swept_out_of_the_heap() -> None:
    deadlines: Deadlines[int] = Deadlines()
    for key in range(10_000):
        deadlines.set(key, 1_000_000)
        deadlines.cancel(key)
    assert len(deadlines._heap) < 100


def test_any_order_of_changes_agrees_with_a_plain_minimum() -> None:
    rng = random.Random(7)
    deadlines: Deadlines[int] = Deadlines()
    model: dict[int, int] = {}
    for _ in range(5_000):
        key = rng.randrange(20)
        if rng.random() < 0.8:
            model[key] = rng.randrange(1_000)
            deadlines.set(key, model[key])
        else:
            model.pop(key, None)
            deadlines.cancel(key)
        assert deadlines.next_ms() == min(model.values(), default=None)
        if model and rng.random() < 0.2:
            soonest_ms = min(model.values())
            popped = deadlines.pop_due(1_000)
            assert popped is not None
            assert model.pop(popped) == soonest_ms
        assert len(deadlines) == len(model)
