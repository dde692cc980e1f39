"""Kafka's own Java clients: one JVM runs the program in `java/`, one test judges each of its checks."""

import json
import subprocess

import pytest

from .samples import CODECS

pytestmark = pytest.mark.interop

RUN_S_MAX = 240.0
CHECKS = (
    *(f"records_{codec}" for codec in CODECS),
    "records_without_idempotence",
    "idempotent_production",
    "group_RangeAssignor",
    "group_RoundRobinAssignor",
    "group_StickyAssignor",
    "group_CooperativeStickyAssignor",
    "group_static_member",
    "admin_topics",
    "admin_configs",
    "admin_partitions",
    "admin_offsets",
    "admin_delete_records",
    "admin_groups",
    "admin_group_offsets",
    "admin_cluster",
    "admin_log_folders",
    "refused_records",
    "refused_consumer_protocol",
    "refused_share_group",
    "refused_transactions",
    "refused_sasl",
)


@pytest.fixture(scope="module")
def failures(java_command: list[str], bootstrap: str) -> dict[str, str]:
    """Check name to what went wrong, empty when nothing did."""
    done = subprocess.run(
        [*java_command, "Interop", bootstrap], capture_output=True, text=True, timeout=RUN_S_MAX
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {line["check"]: line["failure"] for line in lines}


@pytest.mark.parametrize("check", CHECKS)
def test_java_client(failures: dict[str, str], check: str) -> None:
    assert failures[check] == ""


def test_every_check_of_the_program_is_judged(failures: dict[str, str]) -> None:
    assert sorted(failures) == sorted(CHECKS)
