"""Stock clients on both sides of a network that splits: a branch topic goes on everywhere, and nothing of it is lost.

One split, and a short one; `make chaos-branches` does five long ones."""

import os
from typing import Any

import pytest

from chaos.network import CannotSplitError
from chaos.split_run import BRANCH_TOPIC, RING_TOPIC, SplitRun

pytestmark = pytest.mark.interop

SPLIT_S = 12.0


@pytest.fixture(scope="module")
def result(java_command: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    run = SplitRun(
        tmp_path_factory.mktemp("split"),
        java=java_command,
        cycles=1,
        split_seconds=SPLIT_S,
        calm_seconds=6,
        seed=1,
    )
    try:
        return run.run()
    except CannotSplitError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"networks cannot be split on this machine: {error}")


def acked(result: dict[str, Any], side: str, topic: str) -> list[int]:
    """What each client of that side was acknowledged during the split."""
    [cycle] = result["cycles"]
    return [
        count
        for name, count in cycle["acked_while_split"].items()
        if name.startswith(side) and name.endswith(topic)
    ]


def test_nothing_is_lost_doubled_missed_or_out_of_order(result: dict[str, Any]) -> None:
    assert result["violations"] == {}, result["examples"]
    assert result["is_read_to_its_end"]


@pytest.mark.parametrize("side", ["minority", "majority"])
def test_both_sides_go_on_writing_to_a_branch_topic(result: dict[str, Any], side: str) -> None:
    assert all(acked(result, side, BRANCH_TOPIC)), result


def test_only_the_majority_goes_on_writing_to_a_ring_topic(result: dict[str, Any]) -> None:
    assert acked(result, "minority", RING_TOPIC) == [0]
    assert all(acked(result, "majority", RING_TOPIC))
