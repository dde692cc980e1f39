"""Rounds that survive an interruption, and those that must not."""

from pathlib import Path

import pytest
from bench.field import OURS, THEIRS
from bench.loads import Figures, Turn
from bench.rows import Row
from bench.runner import Runner
from bench.state import State, fingerprint

KEY = {"code": "a", "machine": "m"}


class Counting:
    """A load without brokers: each round is numbered, and a given one goes wrong."""

    def __init__(self, fails_at: int = 0) -> None:
        self.sides: list[str] = []
        self._fails_at = fails_at

    def run(self, turn: Turn) -> Figures:
        self.sides.append(turn.side)
        if len(self.sides) == self._fails_at:
            raise RuntimeError("the broker went away")
        return {"p50_us": float(len(self.sides))}


def run(load: Counting, state: State, rounds: int) -> Runner:
    # The field is only handed on to the load, and this one has no use for it.
    runner = Runner(None, state, [OURS, THEIRS], rounds, 1.0)  # type: ignore[arg-type]
    runner.run([Row("row", "a row", load, ("p50_us",))])
    return runner


def test_rounds_alternate_between_the_sides(tmp_path: Path) -> None:
    load = Counting()
    run(load, State.load(tmp_path / "rounds.json", KEY), rounds=2)
    assert load.sides == [OURS, THEIRS, OURS, THEIRS]


def test_a_run_goes_on_where_the_last_one_stopped(tmp_path: Path) -> None:
    path = tmp_path / "rounds.json"
    run(Counting(fails_at=4), State.load(path, KEY), rounds=2)
    load = Counting()
    state = State.load(path, KEY)
    run(load, state, rounds=2)
    assert load.sides == [THEIRS]
    assert [len(state.of("row", side)) for side in (OURS, THEIRS)] == [2, 2]


def test_a_failing_load_is_reported_and_not_tried_again(tmp_path: Path) -> None:
    load = Counting(fails_at=1)
    runner = run(load, State.load(tmp_path / "rounds.json", KEY), rounds=5)
    assert runner.failures == {"row": f"{OURS}: the broker went away"}
    assert load.sides == [OURS]


def test_rounds_of_other_code_are_not_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "rounds.json"
    State.load(path, KEY).add("row", OURS, {"p50_us": 1.0})
    state = State.load(path, {**KEY, "code": "b"})
    assert state.of("row", OURS) == []
    assert state.discarded == "measured with another code"


def test_forgotten_rounds_stay_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "rounds.json"
    state = State.load(path, KEY)
    state.add("row", OURS, {"p50_us": 1.0})
    state.forget("row")
    assert State.load(path, KEY).of("row", OURS) == []


@pytest.mark.parametrize(("name", "is_noticed"), [("code.py", True), ("fast.so", True), ("notes.md", False)])
def test_the_fingerprint_notices_code_and_nothing_else(tmp_path: Path, name: str, is_noticed: bool) -> None:
    before = fingerprint([tmp_path])
    (tmp_path / name).write_text("x")
    assert (fingerprint([tmp_path]) != before) is is_noticed
