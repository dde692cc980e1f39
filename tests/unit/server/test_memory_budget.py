"""Memory that all connections share: first come, first served, and every byte comes back."""

import pytest

from anabranch.broker.memory_budget import MemoryBudget


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


def test_giving_back_more_than_was_taken_is_a_defect() -> None:
    budget = MemoryBudget(10)
    with pytest.raises(AssertionError):
        budget.give(1)


def test_waiting_for_more_than_there_will_ever_be_is_a_defect() -> None:
    with pytest.raises(AssertionError):
        MemoryBudget(10).wait(11, lambda: None)
