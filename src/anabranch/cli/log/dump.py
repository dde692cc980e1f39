"""Batches of segment files as lines: what `anabranch log dump` prints.

Files are read batch by batch, so that memory holds one batch at a time. A place that is not a batch ends the
dump of its file with an error that names it.
"""

import json
import os
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import click

from anabranch.cli.common import WrongCommandLine
from anabranch.cli.log.offline import is_segment, partition_folders, segment_bases
from anabranch.cli.records.lines import encode, to_text
from anabranch.errors import AnabranchError, CorruptDataError
from anabranch.log import names
from anabranch.log.disk.files import File
from anabranch.log.disk.real_files import RealFiles
from anabranch.log.segment.scan import headers_from
from anabranch.record.batch import BatchHeader, crc_holds
from anabranch.record.compression import Codec
from anabranch.record.records import Record, records_of
from anabranch.values import Offset


class Dumped(NamedTuple):
    """One batch: its place, its header and all of its bytes."""

    file: str
    position: int
    header: BatchHeader
    data: bytes


def batches_below(files: RealFiles, path: str, wanted: tuple[str, ...], start: int) -> Iterator[Dumped]:
    """Every batch at or after `start` of a data folder, a partition's folder, or one .log file."""
    for segment in _segments(files, path, wanted, start):
        file = files.open(segment)
        try:
            yield from _batches_of(file, files.size(segment), start)
        finally:
            file.close()


def _segments(files: RealFiles, path: str, wanted: tuple[str, ...], start: int) -> Iterator[str]:
    if os.path.isfile(path):
        if not is_segment(os.path.basename(path)):
            raise WrongCommandLine(f"{path} is not a segment: the name of one is twenty digits and .log.")
        yield path
        return
    for folder in partition_folders(path, wanted):
        bases = segment_bases(files, folder)
        for number, base in enumerate(bases):
            if number + 1 == len(bases) or bases[number + 1] > start:
                yield names.segment_path(folder, Offset(base), names.LOG)


def _batches_of(file: File, size: int, start: int) -> Iterator[Dumped]:
    position = 0
    for header in headers_from(file, 0, size):
        if header.last_offset >= start:
            yield Dumped(file.path, position, header, file.pread(header.size_bytes, position))
        position += header.size_bytes


def show(batches: Iterable[Dumped], with_records: bool, format: str) -> None:
    if format == "text":
        for batch in batches:
            click.echo("\n".join(_text_lines(batch, with_records)))
        return
    separator = "[" if format == "json" else ""
    for batch in batches:
        click.echo(
            separator + json.dumps(as_json(batch, with_records), ensure_ascii=False), nl=format == "ndjson"
        )
        separator = ",\n" if format == "json" else ""
    if format == "json":
        click.echo("]" if separator == ",\n" else "[]")


def as_json(batch: Dumped, with_records: bool) -> dict[str, Any]:
    header = batch.header
    line: dict[str, Any] = {
        "file": batch.file,
        "position": batch.position,
        "size_bytes": header.size_bytes,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "records": header.record_count,
        "codec": codec_name(header),
        "generation": header.generation,
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "log_append_time": header.is_log_append_time,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "transactional": header.is_transactional,
        "control": header.is_control,
        "crc_holds": _crc_holds(batch),
    }
    if with_records:
        line["records"] = [json.loads(encode(_fields(record))) for record in _records(batch)]
    return line


def _text_lines(batch: Dumped, with_records: bool) -> Iterator[str]:
    header = batch.header
    marks = [name for name, on in _marks(batch) if on]
    producer = f" producer {header.producer_id}/{header.producer_epoch}@{header.base_sequence}"
    yield (
        f"{batch.file}:{batch.position} offsets {header.base_offset}..{header.last_offset}"
        f" records {header.record_count} bytes {header.size_bytes} {codec_name(header)}"
        f" generation {header.generation} time {header.base_timestamp}..{header.max_timestamp}"
        f"{producer if header.producer_id >= 0 else ''}{''.join(f' {mark}' for mark in marks)}"
    )
    if with_records:
        for record in _records(batch):
            yield f"  {record.offset} {record.timestamp}\t{to_text(record.key, record.value)}"


def _marks(batch: Dumped) -> list[tuple[str, bool]]:
    header = batch.header
    return [
        ("append-time", header.is_log_append_time),
        ("transactional", header.is_transactional),
        ("control", header.is_control),
        ("CRC-DOES-NOT-HOLD", not _crc_holds(batch)),
    ]


def _crc_holds(batch: Dumped) -> bool:
    return crc_holds(batch.data, 0, len(batch.data))


def codec_name(header: BatchHeader) -> str:
    try:
        return Codec(header.codec).name.lower()
    except ValueError:
        return f"codec-{header.codec}"


def _records(batch: Dumped) -> list[Record]:
    """The records of a batch whose checksum holds; nothing in any other can be trusted."""
    if not _crc_holds(batch):
        return []
    try:
        return list(records_of(batch.data))
    except AnabranchError as error:
        where = f"{batch.file} cannot be read at position {batch.position}"
        raise CorruptDataError(f"{where}: {str(error).rstrip('.')}.") from error


def _fields(record: Record) -> dict[str, Any]:
    return {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": record.key,
        "value": record.value,
        "headers": record.headers,
    }
