"""Runs of simulated clusters by seed, as several tests make them."""

import os
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

from anabranch.testing.simulation.cluster_runs import trace_of


def traces_of(seeds: Iterable[int], workload: Any, option: str = "") -> str:
    """What happened in all of them; the first that fails says how it is repeated."""
    command = f"make sim {option}=1" if option else "make sim"
    text = ""
    for seed in seeds:
        try:
            text += "".join(f"{line}\n" for line in trace_of(seed, workload))
        except Exception as error:
            error.add_note(f"{command} SEED={seed} repeats this")
            raise
    return text


def traces_elsewhere(*flags: str, seed: int = 1) -> list[list[str]]:
    """One seed in two other processes, with other hashes of strings, so that no order comes from them."""
    command = [sys.executable, "-m", "anabranch.testing.simulation.cluster_runs", *flags, "--seed", str(seed)]
    return [
        subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
        ).stdout.splitlines()
        for hash_seed in ("1", "2")
    ]
