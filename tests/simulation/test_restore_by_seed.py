"""A cluster loses all of its disks at any step, and some of its snapshots, and comes back from its bucket: by seed.

`make sim-restore SEEDS=200` runs more of them."""

from collections.abc import Iterator

import pytest

from support.broker_cluster import close_all
from support.restore_world import run_seed

SEEDS = 12


@pytest.fixture(autouse=True)
def clusters_end() -> Iterator[None]:
    yield
    close_all()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_bucket_alone_brings_everything_back_or_the_loss_is_named(seed: int) -> None:
    run_seed(seed)
