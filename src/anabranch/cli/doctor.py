"""`anabranch doctor`: is this machine fit to run a node? One line per check: ok, warn or fail, and what next.

It changes nothing: the data folder is only looked at. Exit code 1 if anything fails.
"""

import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import click

import anabranch
from anabranch.cli.client import answers
from anabranch.cli.common import DEFAULT_BOOTSTRAP, Command, format_option, show_json
from anabranch.cli.terminal import echo_styled, escaped_cell, styled

OPEN_FILES_WANTED = 20_000
"""For some 10,000 partitions that are written to at once, and thousands of connections."""
FREE_BYTES_WANTED = 2 * 2**30
LOCK_NAME = ".lock"
LIBRARIES = ("click", "rich", "confluent-kafka", "prometheus-client", "crc32c", "lz4", "cramjam")
YEAR_OF_THIS_CODE_MS = 1_767_225_600_000
"""1 January 2026: a clock before that is wrong."""


class Finding(NamedTuple):
    check: str
    verdict: str
    detail: str
    next_step: str = ""


@click.command(cls=Command)
@click.option("--data-dir", default="anabranch-data", show_default=True, help="The folder a node would use.")
@click.option(
    "--bootstrap",
    metavar="HOST:PORT",
    envvar="ANABRANCH_BOOTSTRAP",
    default=DEFAULT_BOOTSTRAP,
    show_default=True,
    help="Where a broker may run already.",
)
@format_option()
def command(data_dir: str, bootstrap: str, format: str) -> None:
    """Check that this machine can run a node."""
    findings = list(examine(data_dir, bootstrap))
    if format == "json":
        show_json([finding._asdict() for finding in findings])
    else:
        for finding in findings:
            echo_styled(_line(finding))
    if any(finding.verdict == "fail" for finding in findings):
        sys.exit(1)


def _line(finding: Finding) -> str:
    colour = {"ok": "green", "warn": "yellow", "fail": "red"}[finding.verdict]
    step = f": {finding.next_step}" if finding.next_step else ""
    rest = escaped_cell(f"{finding.check:<17} {finding.detail}{step}")
    return f"{styled(f'{finding.verdict:<5}', colour)} {rest}"


def examine(data_dir: str, bootstrap: str) -> Iterator[Finding]:
    yield python_version(sys.version_info[:2])
    for library in LIBRARIES:
        yield library_version(library)
    yield zstd_library()
    yield open_files(*_open_file_limits())
    yield disk_space(data_dir, lambda folder: shutil.disk_usage(folder).free)
    yield data_folder(data_dir)
    yield port(bootstrap)
    yield clock(time.time_ns() // 1_000_000)


def python_version(version: tuple[int, ...]) -> Finding:
    text = (
        f"{platform.python_implementation()} {platform.python_version()}, anabranch {anabranch.__version__}"
    )
    if version < (3, 11):
        return Finding("python", "fail", text, "install Python 3.11 or later")
    return Finding("python", "ok", text)


def library_version(name: str) -> Finding:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return Finding(name, "ok", version(name))
    except PackageNotFoundError:
        return Finding(name, "fail", "is not installed", "install anabranch again with pip")


def zstd_library() -> Finding:
    if sys.version_info >= (3, 14):
        return Finding("zstd", "ok", "part of Python")
    return library_version("backports.zstd")


def _open_file_limits() -> tuple[int, int]:
    import resource

    return resource.getrlimit(resource.RLIMIT_NOFILE)


def open_files(soft: int, hard: int) -> Finding:
    """A node raises its own limit to the hard one, so that is what counts."""
    text = f"{soft}, may be raised to {'any' if hard < 0 else hard}"
    if 0 <= hard < OPEN_FILES_WANTED:
        step = f"raise the hard limit to {OPEN_FILES_WANTED} (ulimit -Hn) for many partitions and connections"
        return Finding("open files", "warn", text, step)
    return Finding("open files", "ok", text)


def disk_space(data_dir: str, free_of: Callable[[str], int]) -> Finding:
    free_bytes = free_of(_nearest_folder(data_dir))
    text = f"{free_bytes / 2**30:.1f} GiB free"
    if free_bytes < FREE_BYTES_WANTED:
        return Finding("disk space", "warn", text, "make room, or set log.retention.bytes")
    return Finding("disk space", "ok", text)


def _nearest_folder(path: str) -> str:
    """The folder itself, or the nearest parent that exists."""
    path = os.path.abspath(path)
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


def data_folder(data_dir: str) -> Finding:
    where = os.path.abspath(data_dir)
    if os.path.exists(where) and not os.path.isdir(where):
        return Finding("data folder", "fail", f"{where} is a file", "choose another --data-dir")
    if not os.access(_nearest_folder(where), os.W_OK | os.X_OK):
        return Finding(
            "data folder", "fail", f"{where} is not writable", "change its owner or choose another"
        )
    if not os.path.isdir(where):
        return Finding("data folder", "ok", f"{where} will be made by `anabranch up`")
    if _is_locked(where):
        return Finding("data folder", "ok", f"{where} is in use by a running node")
    return Finding("data folder", "ok", f"{where} is free")


def _is_locked(folder: str) -> bool:
    """Whether a node holds the folder; asks for the lock and lets go of it at once."""
    import fcntl

    try:
        descriptor = os.open(os.path.join(folder, LOCK_NAME), os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def port(bootstrap: str) -> Finding:
    if answers(bootstrap):
        return Finding("broker", "ok", f"something answers at {bootstrap}")
    return Finding("broker", "warn", f"nothing answers at {bootstrap}", "start a node with `anabranch up`")


def clock(now_ms: int) -> Finding:
    text = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now_ms / 1000))
    if now_ms < YEAR_OF_THIS_CODE_MS:
        return Finding("clock", "fail", text, "set the clock: retention and record times depend on it")
    return Finding("clock", "ok", text)
