"""Files by their address, `file://` or an object store's, through Arrow: the same from driver and executors."""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pyarrow.fs as pf

from anabranch.errors import OptionError
from anabranch.pipeline.spark.failures import in_one_line


class Found(NamedTuple):
    path: str
    bytes: int
    modified_ms: int


def place(address: str) -> tuple[Any, str]:
    """The file system, and the path in it. OptionError if no file system goes by such an address."""
    parts = urlsplit(address)
    if parts.scheme in ("", "file"):
        return pf.LocalFileSystem(), address.removeprefix(
            "file://"
        )  # No quoting: a folder may have a % in its name.
    plain = (
        address.replace("s3a://", "s3://", 1) if parts.scheme == "s3a" else address
    )  # Hadoop's name for it.
    try:
        files, path = pf.FileSystem.from_uri(plain)
    except (OSError, ValueError) as error:
        raise OptionError(f"{address} cannot be used: {in_one_line(error)}") from error
    return files, path


def make_folder_of(address: str) -> None:
    files, path = place(address)
    files.create_dir(path.rsplit("/", 1)[0], recursive=True)


def read_text(address: str) -> str | None:
    files, path = place(address)
    if files.get_file_info(path).type != pf.FileType.File:
        return None
    with files.open_input_stream(path) as stream:
        return bytes(stream.read()).decode()


def write_text(address: str, text: str) -> None:
    """Whole or not at all: written aside, then moved."""
    files, path = place(address)
    files.move(_written_aside(address, text), path)


def write_first_text(address: str, text: str) -> str:
    """Write the file unless it is there, and return what it holds then: what the quickest of several has written.

    Without hard links, as in an object store, there is no such thing: of two that come at the same moment the later
    one's text stays.
    """
    files, path = place(address)
    aside = _written_aside(address, text)
    if isinstance(files, pf.LocalFileSystem):
        try:
            os.link(aside, path)
        except FileExistsError:
            pass  # Somebody was quicker.
        except OSError:
            os.replace(aside, path)  # Not every file system has hard links.
        Path(aside).unlink(missing_ok=True)
    else:
        files.move(aside, path)
    there = read_text(address)
    return text if there is None else there


def _written_aside(address: str, text: str) -> str:
    """Under a name of its own: others may write the same file at the same time."""
    make_folder_of(address)
    files, path = place(address)
    aside = f"{path}.new-{uuid.uuid4().hex}"
    with files.open_output_stream(aside) as stream:
        stream.write(text.encode())
    return aside


def remove(addresses: list[str]) -> None:
    for address in addresses:
        files, path = place(address)
        files.delete_file(path)


def listed(folder: str) -> Iterator[Found]:
    """Every file below a folder; none if the folder is not there."""
    files, path = place(folder)
    prefix = folder[: len(folder) - len(path)] if folder.endswith(path) else ""
    for info in files.get_file_info(pf.FileSelector(path, recursive=True, allow_not_found=True)):
        if info.type == pf.FileType.File:
            yield Found(prefix + info.path, info.size, int(info.mtime_ns // 1_000_000))


def is_file(address: str) -> bool:
    files, path = place(address)
    return bool(files.get_file_info(path).type == pf.FileType.File)
