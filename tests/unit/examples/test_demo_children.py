"""Processes that end with the one that started them, even if that one is killed."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from examples.demo.children import Child

from support.waiting import wait_until

SAYS_ITS_NUMBER = """
import json, os, time
print(json.dumps({"pid": os.getpid()}), flush=True)
time.sleep(600)
"""

PARENT = """
import sys, time
from pathlib import Path
from examples.demo.children import Child

child = Child("A child", [sys.executable, "-c", sys.argv[2]], Path(sys.argv[1]))
print(child.first_answer(60)["pid"], flush=True)
time.sleep(600)
"""


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_child_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(tmp_path / "child.log"), SAYS_ITS_NUMBER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert is_running(child)
        parent.kill()
    try:
        wait_until(lambda: not is_running(child), "the end of the child")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def test_command_is_not_begun_if_the_parent_is_gone_already() -> None:
    nobody = os.getpid() + 1  # Whoever that is, it did not start what follows.
    tied = [
        sys.executable,
        "-m",
        "examples.demo.tied",
        str(nobody),
        sys.executable,
        "-c",
        "print(1)",
    ]
    run = subprocess.run(tied, capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr == f"Process {nobody}, which started this, is gone.\n"


def test_child_that_ignores_sigterm_is_killed_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("examples.demo.children.STOP_SECONDS_MAX", 0.2)
    ignores = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    deaf = f"{ignores}; print('{{}}', flush=True); time.sleep(600)"
    with Child("A deaf one", [sys.executable, "-c", deaf], tmp_path / "child.log") as child:
        child.first_answer(60)
    assert child.wait() == -signal.SIGKILL
