"""The Spark session that jobs and tests run in: embedded unless a master is named.

Workers run the Python that runs us, times are UTC, rows travel as Arrow, and the web page of Spark stays off unless
it is asked for. Whatever the caller's `config` says wins. Under `spark-submit` the JVM is there already: its master
and its Java are kept.

With a `log` file, everything the JVM and the workers say goes there instead of to our own output, which then holds
nothing but our own words.
"""

import os
import re
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anabranch.errors import ExtraMissingError, PipelineError
from anabranch.pipeline.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONFIG = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.log.level": "ERROR",
}
EMBEDDED_MASTER = "local[*]"
EMBEDDED_CONFIG = {
    # An embedded Spark talks to nobody outside; left alone it listens on the first address it finds.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
LAST_WORDS_BYTES = 2000
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_NOT_TELLING = re.compile(
    r"at |WARNING:|\.\.\. |Using Spark's default log4j profile|[\d/]+ [\d:]+ (INFO|WARN) |$"
)
COMPLAINT_LINES = 2
_GATEWAY = "PYSPARK_GATEWAY_PORT"
"""Set by `spark-submit` for the Python it starts."""


def spark_session(
    *,
    master: str | None = None,
    app: str = "anabranch",
    config: Mapping[str, str] | None = None,
    log: Path | None = None,
) -> "SparkSession":
    """A session, new or the one that is already there. The extra and a Java must be installed."""
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ExtraMissingError(
            "The pipeline runs on Spark, which is not installed: pip install 'anabranch[spark]'."
        ) from error
    prepare_environment()
    settings = _settings(master, app, config or {})
    _start_jvm(settings, log)
    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    session: SparkSession = builder.getOrCreate()
    return session


def _settings(master: str | None, app: str, config: Mapping[str, str]) -> dict[str, str]:
    chosen = master or os.environ.get("MASTER") or (None if _GATEWAY in os.environ else EMBEDDED_MASTER)
    settings = {**CONFIG, "spark.app.name": app}
    if chosen is not None:
        settings["spark.master"] = chosen
        if chosen.startswith("local"):
            settings.update(EMBEDDED_CONFIG)
    return {**settings, **config}


def _start_jvm(settings: Mapping[str, str], log: Path | None) -> None:
    """Start the JVM, with its output in `log` if that is given, unless one runs already."""
    from pyspark import SparkConf, SparkContext

    if SparkContext._active_spark_context is not None or _GATEWAY in os.environ:
        return
    conf = SparkConf().setAll(list(settings.items()))
    with interrupts_waiting():
        gateway = _launched(conf, log)
    SparkContext(conf=conf, gateway=gateway)


def _launched(conf: Any, log: Path | None) -> Any:
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    if log is None:
        return launch_gateway(conf)
    with log.open("ab") as output:
        try:
            return launch_gateway(conf, popen_kwargs={"stdout": output, "stderr": output})
        except PySparkRuntimeError as error:
            words = last_words(log)
            raise PipelineError(f"Spark did not start: {complaint(words)}\n{words}") from error


def not_ignored(numbers: Iterable[signal.Signals]) -> list[signal.Signals]:
    """`nohup` has SIGHUP ignored, so that a job outlives its terminal. A handler of ours would undo that, for the JVM
    too: what it is started with ignored it leaves alone, and of handlers it inherits none."""
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]


@contextmanager
def interrupts_waiting() -> Iterator[None]:
    """A Ctrl-C within the block, or another signal that ends us, is heard at its end.

    A JVM whose Python gives up while it comes up stays for ever: it fails to tell its address, its main thread ends
    with that, and nobody is left who would notice that the Python is gone.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard: list[int] = []
    before = {
        number: signal.signal(number, lambda number, frame: heard.append(number))
        for number in not_ignored(ENDING_SIGNALS)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if heard:
        signal.raise_signal(heard[0])


def last_words(log: Path) -> str:
    """The end of what the JVM said."""
    with log.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - LAST_WORDS_BYTES))
        return file.read().decode(errors="replace").strip() or "none."


def complaint(words: str) -> str:
    """Of a JVM that did not start: its last lines, without warnings and where in Java it was."""
    lines = [line.strip() for line in words.splitlines()]
    telling = [line for line in lines if not _NOT_TELLING.match(line)]
    return ": ".join(telling[-COMPLAINT_LINES:]) or "it says nothing of why."


def prepare_environment() -> None:
    """Let Spark find its Java, and workers our Python."""
    if _GATEWAY not in os.environ:
        java = find_java()
        os.environ["JAVA_HOME"] = str(java.home)
        os.environ["PATH"] = f"{java.home / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
