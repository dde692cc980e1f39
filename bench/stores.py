"""Object stores for rows in mode object: a folder, or an S3 of our own that is as slow as it is told to be.

The S3 is a thread of this process, which does nothing else while a load runs: its CPU time is the store's. It counts
the requests it gets, whoever sends them.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from anabranch.testing.stub_store import StubStore

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench", "AWS_REGION": "us-east-1"}
"""Any will do: nobody checks a signature."""


@dataclass(frozen=True)
class Counts:
    """What an S3 was asked for, and what that took it."""

    puts: int = 0
    gets: int = 0
    cpu_seconds: float = 0.0

    def since(self, before: "Counts") -> "Counts":
        return Counts(self.puts - before.puts, self.gets - before.gets, self.cpu_seconds - before.cpu_seconds)


class Store:
    """Where brokers keep their objects, as words of their command line."""

    def __init__(self, url: str, stub: StubStore | None = None) -> None:
        self._url = url
        self._stub = stub

    def words(self, settings: Mapping[str, object]) -> Sequence[str]:
        words = ["--object-store", self._url]
        for name, value in settings.items():
            words += ["--set", f"{name}={value}"]
        return words

    def counts(self) -> Counts:
        if self._stub is None:
            return Counts()
        requests = self._stub.requests
        return Counts(requests["PUT"], requests["GET"], time.process_time())


@contextmanager
def folder_store(folder: Path) -> Iterator[Store]:
    """Below a folder that somebody else removes."""
    yield Store(f"file://{folder.absolute()}/objects")


@contextmanager
def slow_store(put_ms: int, get_ms: int = 0) -> Iterator[Store]:
    """An S3 for the time of the block; brokers started meanwhile find its credentials in their environment."""
    before = {name: os.environ.get(name) for name in CREDENTIALS}
    os.environ.update(CREDENTIALS)
    try:
        with StubStore(put_ms=put_ms, get_ms=get_ms) as stub:
            yield Store(f"s3://bench/objects?endpoint={stub.endpoint}", stub)
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
