"""What was measured, and on what: told on top of every report, and part of what makes rounds comparable."""

import os
import platform
import subprocess
from pathlib import Path

from bench.brokers import anabranch_program

SAY_S_MAX = 20.0
BUSY_SHARE = 0.35  # Of all cores.


def _said(*command: str, folder: Path | None = None) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SAY_S_MAX)
    return done.stdout.strip() if done.returncode == 0 else ""


def describe_node() -> str:
    """What `anabranch version` says: the version, and which form of the hot loops runs."""
    return _said(anabranch_program(), "version")


def describe_machine() -> str:
    cpu = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores ({cpu}), {memory_gb:.0f} GB, Linux {platform.release()}"


def busy_warning() -> str:
    """A sentence when others use this machine too; empty when it is quiet."""
    load = os.getloadavg()[0]
    if load <= BUSY_SHARE * (os.cpu_count() or 1):
        return ""
    return f"The machine was busy when this run began (load {load:.1f}): take the figures with salt."


def source_commit(tree: Path) -> str:
    commit = _said("git", "rev-parse", "--short=12", "HEAD", folder=tree)
    is_changed = _said("git", "status", "--porcelain", "--", "src", "bench", folder=tree)
    return (commit or "unknown") + (" with changes" if is_changed else "")
