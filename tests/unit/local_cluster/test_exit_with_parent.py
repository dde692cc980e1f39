"""A process exits with the one that started it, even if that one is killed."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from support.waiting import wait_until

CHILD = """
import os, sys, time
from anabranch.local_cluster.exit_with_parent import exit_with_parent
exit_with_parent(int(sys.argv[1]))
print(os.getpid(), flush=True)
time.sleep(600)
"""
PARENT = """
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", sys.argv[1], str(os.getpid())])
time.sleep(600)
"""


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_child_exits_when_its_parent_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT, CHILD], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert is_running(child)
        parent.kill()
    try:
        wait_until(lambda: not is_running(child), "the end of the child")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def test_child_whose_parent_is_gone_already_does_not_go_on() -> None:
    nobody = os.getpid() + 1  # Whoever that is, it did not start what follows.
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(nobody)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert f"LocalClusterError: Process {nobody}, which started this one, is gone." in done.stderr
