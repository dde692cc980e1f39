"""The metadata quorum under loss, delay, cuts, crashes, torn writes, snapshots and changes of its members, by seed."""

import pytest

from support.quorum_world import run

SEEDS = 200


@pytest.mark.parametrize("seed", range(SEEDS))
def test_quorum_agrees_whatever_happens(seed: int) -> None:
    assert run(seed, steps=1000)["acknowledged"] > 0


def test_a_seed_repeats_itself() -> None:
    assert run(7, steps=400) == run(7, steps=400)
