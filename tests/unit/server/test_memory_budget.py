"""Memory that all connections share: addresses take turns, and every byte comes back."""

import pytest

from anabranch.broker.requests.memory_budget import MemoryBudget
from support.workers import HeldWorkers


def test_takes_until_all_is_taken() -> None:
    budget = MemoryBudget(10)
    assert budget.take(6)
    assert not budget.take(5)
    assert budget.take(4)
    assert budget.bytes_taken == 10


def test_who_stands_in_line_is_called_in_order_as_bytes_come_back() -> None:
    budget = MemoryBudget(10)
    assert budget.take(10)
    calls: list[str] = []
    budget.wait(6, lambda: calls.append("first"))
    budget.wait(4, lambda: calls.append("second"))
    budget.give(5)
    assert calls == []
    budget.give(5)
    assert calls == ["first", "second"]
    assert (budget.bytes_taken, budget.is_short) == (10, False)


def test_small_one_does_not_overtake_who_stands_in_line() -> None:
    budget = MemoryBudget(10)
    assert budget.take(5)
    budget.wait(6, lambda: None)
    assert budget.is_short
    assert not budget.take(1)


def test_who_leaves_the_line_is_not_called() -> None:
    budget = MemoryBudget(10)
    assert budget.take(10)
    calls: list[str] = []

    def first() -> None:
        calls.append("first")

    budget.wait(10, first)
    budget.wait(1, lambda: calls.append("second"))
    budget.leave(first)
    budget.give(1)
    assert calls == ["second"]


def test_addresses_take_turns() -> None:
    budget = MemoryBudget(10)
    assert budget.take(10)
    calls: list[str] = []
    for number in range(3):
        budget.wait(2, lambda number=number: calls.append(f"many{number}"), "many")
    budget.wait(2, lambda: calls.append("few0"), "few")
    assert (budget.bytes_wanted, budget.bytes_missing) == (8, 8)
    for _ in range(4):
        budget.give(2)
    assert calls == ["many0", "few0", "many1", "many2"]
    assert (budget.bytes_wanted, budget.bytes_missing, budget.is_short) == (0, 0, False)


def test_those_behind_one_who_leaves_are_served_if_they_want_less() -> None:
    budget = MemoryBudget(10)
    assert budget.take(8)
    calls: list[str] = []

    def large() -> None:
        calls.append("large")

    budget.wait(5, large)
    budget.wait(2, lambda: calls.append("small"))
    assert budget.leave(large)
    assert calls == ["small"]
    assert not budget.leave(large)


def test_giving_back_more_than_was_taken_is_a_defect() -> None:
    budget = MemoryBudget(10)
    with pytest.raises(AssertionError):
        budget.give(1)


def test_waiting_for_more_than_there_will_ever_be_is_a_defect() -> None:
    with pytest.raises(AssertionError):
        MemoryBudget(10).wait(11, lambda: None)


# --- tasks of workers ------------------------------------------------------------------------------------------------


def test_task_that_waits_for_memory_begins_when_another_ends() -> None:
    budget, workers, results = MemoryBudget(100), HeldWorkers(), []
    for number in range(3):
        budget.run(workers, 60, lambda number=number: number, lambda result, error: results.append(result))
    assert len(workers.heavies) == 1
    while workers.heavies:
        workers.run_heavy()
    assert (results, budget.bytes_taken) == ([0, 1, 2], 0)


def test_task_that_left_the_line_never_begins() -> None:
    budget, workers, results = MemoryBudget(100), HeldWorkers(), []
    for number in range(2):
        leave = budget.run(
            workers, 60, lambda number=number: number, lambda result, error: results.append(result)
        )
    leave()
    while workers.heavies:
        workers.run_heavy()
    assert (results, budget.bytes_taken) == ([0], 0)


def test_memory_is_given_back_if_whoever_asked_fails() -> None:
    budget, workers = MemoryBudget(100), HeldWorkers()

    def fail(result: object, error: BaseException | None) -> None:
        raise RuntimeError("a defect")

    budget.run(workers, 60, lambda: 1, fail)
    with pytest.raises(RuntimeError, match="a defect"):
        workers.run_heavy()
    assert budget.bytes_taken == 0
