"""`anabranch doctor`: is this machine fit to run a node? One line per check: ok, warn or fail, and what next.

It leaves nothing behind: what it writes to measure the disk has no name. Exit code 1 if anything fails.
"""

import os
import platform
import shutil
import sys
import time
from collections.abc import Iterator
from importlib import metadata

import click
from click.core import ParameterSource

import anabranch
from anabranch.cli.common import DEFAULT_BOOTSTRAP, Command, format_option, show_json
from anabranch.cli.doctor import disk as doctor_disk
from anabranch.cli.doctor import network as doctor_network
from anabranch.cli.doctor.findings import Finding
from anabranch.cli.terminal import echo_styled, escaped_cell, styled
from anabranch.config import http_host_and_port
from anabranch.record import backend as form

OPEN_FILES_WANTED = 20_000
"""For some 10,000 partitions that are written to at once, and thousands of connections."""
LIBRARIES = ("click", "rich", "confluent-kafka", "prometheus-client", "crc32c", "lz4", "cramjam")
YEAR_OF_THIS_CODE_MS = 1_767_225_600_000
"""1 January 2026: a clock before that is wrong."""


@click.command(cls=Command)
@click.option("--data-dir", default="anabranch-data", show_default=True, help="The folder a node would use.")
@click.option(
    "--bootstrap",
    metavar="HOST:PORT",
    envvar="ANABRANCH_BOOTSTRAP",
    default=DEFAULT_BOOTSTRAP,
    show_default=True,
    help="Where a broker runs, or would.",
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default=DEFAULT_BOOTSTRAP,
    show_default=True,
    help="Where a node would listen.",
)
@click.option("--http", metavar="[HOST:]PORT", help="Where it would serve HTTP. [nowhere]")
@click.option("--peer-listen", metavar="HOST:PORT", help="Where it would listen to other brokers. [nowhere]")
@format_option()
@click.pass_context
def command(
    ctx: click.Context,
    data_dir: str,
    bootstrap: str,
    listen: str,
    http: str | None,
    peer_listen: str | None,
    format: str,
) -> None:
    """Check that this machine can run a node, and that a broker speaks Kafka. Exit code 1 if something is broken."""
    is_named = ctx.get_parameter_source("bootstrap") is not ParameterSource.DEFAULT
    findings = [
        *examine_machine(),
        *examine_disk(data_dir),
        *examine_network(listen, http, peer_listen),
        doctor_network.broker(bootstrap, is_named=is_named),
    ]
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


def examine_machine() -> Iterator[Finding]:
    yield python_version(sys.version_info[:2])
    for library in LIBRARIES:
        yield library_version(library)
    yield zstd_library()
    yield hot_loops(form.COMPILED, form.PURE_WANTED)
    yield extra("spark", "pyspark", "pipelines into tables")
    if has_library("pyspark"):
        yield java()
    yield extra("objects", "obstore", "topics in buckets of S3, Google or Azure")
    yield open_files(*_open_file_limits())
    yield clock(time.time_ns() // 1_000_000)


def examine_disk(data_dir: str) -> Iterator[Finding]:
    folder = doctor_disk.data_folder(data_dir)
    yield folder
    found = doctor_disk.owner(data_dir, os.geteuid())
    if found is not None:
        yield found
    if folder.verdict != "fail":
        yield doctor_disk.disk_space(data_dir, lambda path: shutil.disk_usage(path).free)
        yield doctor_disk.sync_latency(data_dir)


def examine_network(listen: str, http: str | None, peer_listen: str | None) -> Iterator[Finding]:
    yield doctor_network.listener("--listen", listen)
    if http is not None:
        try:
            host, port = http_host_and_port(http)
        except ValueError as error:
            raise click.UsageError(f"--http {http} {error}") from None
        yield doctor_network.listener("--http", f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    if peer_listen is not None:
        yield doctor_network.listener("--peer-listen", peer_listen)


def hot_loops(is_compiled: bool, is_pure_wanted: bool) -> Finding:
    if is_compiled:
        return Finding("hot loops", "ok", "compiled")
    if is_pure_wanted:
        return Finding(
            "hot loops", "warn", "pure, as ANABRANCH_PURE asks", "unset it: the compiled form is faster"
        )
    step = "install a C compiler and Python's headers, then anabranch again: compiled they are faster"
    return Finding("hot loops", "warn", "pure", step)


def extra(name: str, library: str, purpose: str) -> Finding:
    """What nobody needs who does not use it."""
    if has_library(library):
        return Finding(f"extra {name}", "ok", f"{library} {metadata.version(library)}")
    return Finding(
        f"extra {name}", "ok", f"not installed; {purpose} need it", f"pip install 'anabranch[{name}]'"
    )


def has_library(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def java() -> Finding:
    from anabranch.errors import JavaMissingError
    from anabranch.pipeline.spark.java import find_java

    try:
        found = find_java()
    except JavaMissingError as error:
        return Finding("java", "warn", str(error).rstrip("."))
    return Finding("java", "ok", f"version {found.version}, of {found.where}")


def python_version(version: tuple[int, ...]) -> Finding:
    text = (
        f"{platform.python_implementation()} {platform.python_version()}, anabranch {anabranch.__version__}"
    )
    if version < (3, 11):
        return Finding("python", "fail", text, "install Python 3.11 or later")
    return Finding("python", "ok", text)


def library_version(name: str) -> Finding:
    try:
        return Finding(name, "ok", metadata.version(name))
    except metadata.PackageNotFoundError:
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


def clock(now_ms: int) -> Finding:
    text = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now_ms / 1000))
    if now_ms < YEAR_OF_THIS_CODE_MS:
        return Finding("clock", "fail", text, "set the clock: retention and record times depend on it")
    return Finding("clock", "ok", text)
