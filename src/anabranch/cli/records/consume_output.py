"""How `consume` writes records: one small writer per format, all of them buffered and flushed when idle.

NDJSON is one object per line, JSON one array, raw the bytes of each value and a newline, text a line for
people.
"""

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING, Any, Protocol

import click

from anabranch.cli.records.lines import encode, to_text
from anabranch.cli.terminal import escaped

if TYPE_CHECKING:
    from confluent_kafka import Message


class Writer(Protocol):
    def write(self, message: "Message") -> None: ...

    def flush(self) -> None: ...


class _LineWriter:
    def __init__(self, out: IO[bytes]) -> None:
        self.out = out

    def flush(self) -> None:
        self.out.flush()


class NdjsonWriter(_LineWriter):
    def write(self, message: "Message") -> None:
        self.out.write(encode(fields_of(message)).encode() + b"\n")


class JsonWriter(_LineWriter):
    """An array, written as it grows; `writer_for` writes the brackets."""

    separator = b""

    def write(self, message: "Message") -> None:
        self.out.write(self.separator + encode(fields_of(message)).encode())
        self.separator = b",\n"


class RawWriter(_LineWriter):
    """The bytes as they are, unless they would drive a terminal."""

    def __init__(self, out: IO[bytes]) -> None:
        super().__init__(out)
        self._is_terminal = out.isatty()

    def write(self, message: "Message") -> None:
        value = message.value() or b""
        if self._is_terminal:
            value = escaped(value.decode("utf-8", "backslashreplace")).encode()
        self.out.write(value + b"\n")


class TextWriter(_LineWriter):
    def write(self, message: "Message") -> None:
        self.out.write(to_text(message.key(), message.value()).encode() + b"\n")


class MetaWriter(_LineWriter):
    def write(self, message: "Message") -> None:
        where = f"{message.partition()}@{message.offset()}"
        line = f"{where}\t{_time_of(message)}\t{to_text(message.key(), message.value())}\n"
        self.out.write(line.encode())


def standard_output() -> IO[bytes]:
    """Always with a buffer. Python's own has none under PYTHONUNBUFFERED: a record could then be written in part, and
    would be out before it is noted as written."""
    out: IO[bytes] = sys.stdout.buffer
    return open(out.fileno(), "wb", closefd=False) if isinstance(out, io.RawIOBase) else out


@contextmanager
def writer_for(format: str, out: IO[bytes], meta: bool) -> Iterator[Writer]:
    if format == "json":
        out.write(b"[")
        yield JsonWriter(out)
        out.write(b"]\n")
        out.flush()
    else:
        text = MetaWriter if meta else TextWriter
        yield {"ndjson": NdjsonWriter, "raw": RawWriter, "text": text}[format](out)


def fields_of(message: "Message") -> dict[str, Any]:
    from confluent_kafka import TIMESTAMP_NOT_AVAILABLE

    kind, timestamp_ms = message.timestamp()
    return {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": None if kind == TIMESTAMP_NOT_AVAILABLE else timestamp_ms,
        "key": message.key(),
        "value": message.value(),
        "headers": _headers_of(message),
    }


def _headers_of(message: "Message") -> list[tuple[str, bytes | None]] | None:
    """None where one has a name that is no UTF-8, over which confluent-kafka stumbles: the record goes on without."""
    try:
        return message.headers() or []
    except (SystemError, UnicodeDecodeError):
        where = f"{message.topic()}-{message.partition()} at offset {message.offset()}"
        click.echo(
            f"The headers of {where} are left out, because the name of one is not UTF-8: the gateway shows them, and "
            "so does `anabranch log dump --records`.",
            err=True,
        )
        return None


def _time_of(message: "Message") -> str:
    _, timestamp_ms = message.timestamp()
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)  # A producer may stamp a record with a year that has no calendar.
