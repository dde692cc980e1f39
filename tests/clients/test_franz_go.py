"""franz-go: one run of the Go program in `go/`, one test judges each of its checks."""

import json
import subprocess
from pathlib import Path

import pytest

from .samples import CODECS

pytestmark = pytest.mark.interop

RUN_S_MAX = 240.0
CHECKS = (
    *(f"records_{codec}" for codec in CODECS),
    "records_without_idempotence",
    "idempotent_production",
    "group_range",
    "group_roundrobin",
    "group_sticky",
    "group_cooperative-sticky",
    "group_static_member",
    "admin_topics",
    "admin_configs",
    "admin_offsets",
    "admin_groups",
    "admin_cluster",
)


@pytest.fixture(scope="module")
def failures(go_binary: Path, bootstrap: str) -> dict[str, str]:
    """Check name to what went wrong, empty when nothing did."""
    done = subprocess.run([str(go_binary), bootstrap], capture_output=True, text=True, timeout=RUN_S_MAX)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {line["check"]: line["failure"] for line in lines}


@pytest.mark.parametrize("check", CHECKS)
def test_franz_go(failures: dict[str, str], check: str) -> None:
    assert failures[check] == ""


def test_every_check_of_the_program_is_judged(failures: dict[str, str]) -> None:
    assert sorted(failures) == sorted(CHECKS)
