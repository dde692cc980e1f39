"""What every job on the command line shares: `--master`, `--conf`, the Spark session, Ctrl-C and the bar.

Spark's own words go into a file in the temporary folder, which is removed when all went well and named when
something went wrong. The first Ctrl-C asks the job to stop, the second ends the process at once.
"""

import logging
import os
import re
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple

import click

from anabranch.cli.client import answers
from anabranch.cli.common import Failure, Function, pairs_of
from anabranch.cli.terminal import console, escaped_cell
from anabranch.errors import AnabranchError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from anabranch.pipeline.spark.progress import OnTasks

_MASTER = re.compile(
    r"local(\[([1-9]\d*|\*)(, *[1-9]\d*)?\])?|local-cluster\[ *\d+ *, *\d+ *, *\d+ *\]|yarn|k8s://.+"
    r"|spark://[^,:/ ]+:\d+(,[^,:/ ]+:\d+)*"
)
NEEDED = ("pyspark", "py4j", "pyarrow", "pandas", "numpy", "pyiceberg", "deltalake")
EXIT_CODE_INTERRUPTED = 130
ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
CANCEL_SECONDS = 0.2
SHOW_CURSOR = b"\x1b[?25h\n"
"""A bar hides it, and has no time to bring it back."""


class SparkStart(NamedTuple):
    """What the user said about Spark."""

    master: str | None
    config: dict[str, str]


def spark_options(function: Function) -> Function:
    """`--master` and `--conf`, which arrive as one `spark_start` argument."""

    def collect(ctx: click.Context, _: click.Parameter, master: str | None) -> SparkStart:
        config = _checked_config(ctx.params.pop("conf"))
        return SparkStart(_checked_master(master or config.get("spark.master")), config)

    conf = click.option(
        "--conf", metavar="NAME=VALUE", multiple=True, is_eager=True, help="A setting of Spark; may be repeated."
    )  # fmt: skip
    master = click.option(
        "--master", "spark_start", metavar="URL", callback=collect,
        help="The Spark cluster, for example spark://host:7077. [default: embedded, local[*]]",
    )  # fmt: skip
    return conf(master(function))


credentials_option = click.option(
    "--credentials-file", metavar="PATH", type=click.Path(exists=True, dir_okay=False),
    help="Credentials of the object store, where tasks run; see object.credentials.file. [default: environment]",
)  # fmt: skip


def _checked_master(master: str | None) -> str | None:
    if master is not None and not _MASTER.fullmatch(master):
        raise click.UsageError(
            f"--master {master} is none Spark knows: write local[2], spark://host:7077, k8s://... or yarn."
        )
    return master


def _checked_config(options: tuple[str, ...]) -> dict[str, str]:
    config = pairs_of(options, "--conf", "spark.driver.memory=2g")
    for name in config:
        if not name.startswith("spark."):
            raise click.UsageError(f"--conf {name} is no setting of Spark: their names begin with `spark.`.")
    return config


@contextmanager
def running_spark(start: SparkStart, app: str) -> "Iterator[SparkSession]":
    """A session for one command. What Spark raises becomes a sentence that names its log."""
    require_spark()
    require_master(start.master)
    with sparks_log() as log:
        from anabranch.pipeline.spark.session import spark_session

        with spinner("Starting Spark"):
            session = spark_session(master=start.master, app=f"anabranch {app}", config=start.config, log=log)
        try:
            yield session
        finally:
            session.stop()


def require_spark() -> None:
    """Failure if the extra is not installed, or not all of it: asked for without importing it."""
    import importlib.util

    if importlib.util.find_spec("pyspark") is None:
        raise Failure("The pipeline runs on Spark, which is not installed: pip install 'anabranch[spark]'.")
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise Failure(f"The pipeline needs {', '.join(missing)} too: pip install 'anabranch[spark]'.")


def require_master(master: str | None) -> None:
    """Failure if no master of a cluster answers: Spark would try for a minute and not say why it gave up."""
    if master is None or not master.startswith("spark://"):
        return
    if not any(answers(address) for address in master.removeprefix("spark://").split(",")):
        raise Failure(f"No Spark master answers at {master}: start one, or leave --master out to run here.")


_logs: set[Path] = set()
"""Of Spark, which go away with the command."""


@contextmanager
def sparks_log() -> Iterator[Path]:
    """A file for Spark's words, which stays only if an error that is not ours sends the user to it."""
    from anabranch.pipeline.spark.failures import in_a_sentence

    handle, name = tempfile.mkstemp(prefix="anabranch-spark-", suffix=".log")
    os.close(handle)
    log = Path(name)
    _logs.add(log)
    try:
        with _ended_by_signals(), _bridge_into(log):
            yield log
    except click.ClickException:
        raise
    except Exception as error:
        # An error of ours of many lines quotes all that Spark said.
        is_named = not isinstance(error, AnabranchError) or "\n" in str(error)
        if is_named:
            _keep(log, error)
        where = f" The whole story is in {log}." if is_named else ""
        raise Failure(f"{in_a_sentence(error).rstrip('.')}.{where}") from error
    finally:
        _remove_logs()


@contextmanager
def _bridge_into(log: Path) -> Iterator[None]:
    """What the bridge to the JVM says goes there too: a Ctrl-C in the middle of a call is a traceback to it."""
    bridge, others = logging.FileHandler(log), logging.StreamHandler()
    bridge.addFilter(_is_of_the_bridge)
    others.addFilter(lambda record: not _is_of_the_bridge(record))
    others.setLevel(logging.WARNING)
    root = logging.getLogger()
    # As long as there is no handler Python shows warnings itself.
    added: list[logging.Handler] = [bridge] if root.handlers else [bridge, others]
    for handler in added:
        root.addHandler(handler)
    try:
        yield
    finally:
        for handler in added:
            root.removeHandler(handler)
        bridge.close()


def _is_of_the_bridge(record: logging.LogRecord) -> bool:
    return record.name == "root" or record.name.startswith("py4j")


def _keep(log: Path, error: Exception) -> None:
    """What Spark said, and where in our code it was met."""
    with log.open("a") as file:
        traceback.print_exception(error, file=file)
    _logs.discard(log)


def _remove_logs() -> None:
    while _logs:
        _logs.pop().unlink(missing_ok=True)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """A SIGTERM, or a terminal that is closed, unwinds as Ctrl-C does: nothing is left behind."""
    from anabranch.pipeline.spark.session import not_ignored

    before = {
        number: signal.signal(number, signal.default_int_handler) for number in not_ignored(ENDING_SIGNALS)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# --- Ctrl-C -------------------------------------------------------------------------------------------------


@contextmanager
def stopping(said: str) -> Iterator[threading.Event]:
    """An event that is set by the first Ctrl-C or SIGTERM; the second ends the process at once."""
    asked = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            _leave_at_once()
        asked.set()
        click.echo(f"\n{said} Press Ctrl-C again to stop at once.", err=True)

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave_at_once() -> None:
    """The JVM follows: it ends when our end of its input is closed."""
    if sys.stderr.isatty():
        os.write(sys.stderr.fileno(), SHOW_CURSOR)
    _remove_logs()
    os._exit(EXIT_CODE_INTERRUPTED)


@contextmanager
def cancelled_by_ctrl_c(session: "SparkSession", consequence: str) -> Iterator[None]:
    """For a job without batches: the first Ctrl-C cancels it. `consequence` says what that leaves behind."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    with stopping("Stopping.") as asked, _cancelling(session, asked):
        try:
            yield
        except (PySparkException, Py4JError) as error:
            if asked.is_set():
                raise Failure(f"Stopped before the end. {consequence}") from error
            raise


@contextmanager
def _cancelling(session: "SparkSession", asked: threading.Event) -> Iterator[None]:
    """Once asked, cancel whatever runs, again and again: a command may be between two of its Spark jobs.

    In a thread of its own, since the one that takes signals may be in the middle of a call into the JVM.
    """
    over = threading.Event()

    def cancel() -> None:
        while not over.wait(CANCEL_SECONDS):
            if asked.is_set():
                session.sparkContext.cancelAllJobs()

    watcher = threading.Thread(target=cancel, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


# --- what is shown meanwhile --------------------------------------------------------------------------------


@contextmanager
def spinner(text: str) -> Iterator[Callable[[str], None]]:
    """A moving sign and a text that can be changed, if somebody is looking."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return

    with console(stderr=True).status(escaped_cell(text)) as shown:
        yield lambda text: shown.update(escaped_cell(text))


@contextmanager
def task_bar(text: str) -> "Iterator[OnTasks | None]":
    """A bar over Spark's tasks, if somebody is looking; None otherwise."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as progress:
        task = progress.add_task(escaped_cell(text), total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


@contextmanager
def one_job(start: SparkStart, name: str, *, unit: str, consequence: str) -> "Iterator[SparkSession]":
    """A session for a job without batches, with its bar (counted in `unit`) and its Ctrl-C."""
    from anabranch.pipeline.spark.progress import watched

    with (
        running_spark(start, name) as session,
        task_bar(unit) as on_tasks,
        cancelled_by_ctrl_c(session, consequence),
        watched(session, name, on_tasks),
    ):
        yield session
