"""Faults on demand for an embedded broker: a disk that refuses, an answer that is late, a link that breaks.

    broker.faults.fail_next_write("orders", error="ENOSPC")
    broker.faults.fail_next_sync("orders")                    # fences the partition until broker.restart()
    broker.faults.delay(api="fetch", milliseconds=300)
    broker.faults.drop_next(api="produce")                    # written, but the producer never hears of it

A fault waits for what it is meant for and strikes `count` times; `clear` forgets those that have not. Disk faults
without a topic strike any topic but the broker's own, so that a test of `orders` does not trip over offsets.
Faults are set from any thread; disk faults strike in the loop's thread and its workers, the others in the loop's.
"""

import asyncio
import errno
import os
import re
import threading
from dataclasses import dataclass
from typing import TypeVar

from anabranch.broker.broker import Broker
from anabranch.broker.handlers import dispatch
from anabranch.broker.requests.call import Call, Client, Piece
from anabranch.wire.api_keys import ApiKey

_LOG_FILE = re.compile(r"(?:.*/)?(?P<topic>[a-zA-Z0-9._-]+)-\d+/\d{20}\.log")

Api = ApiKey | str | None


@dataclass
class _Fault:
    count: int


@dataclass
class _DiskFault(_Fault):
    operation: str
    topic: str | None
    error: int

    def strikes(self, operation: str, topic: str) -> bool:
        if operation != self.operation:
            return False
        return topic == self.topic if self.topic is not None else not topic.startswith("__")


@dataclass
class _AnswerFault(_Fault):
    api: ApiKey | None
    delay_ms: int | None


class Faults:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._disk: list[_DiskFault] = []
        self._answers: list[_AnswerFault] = []

    def fail_next_write(self, topic: str | None = None, error: str = "ENOSPC", *, count: int = 1) -> None:
        """The next write to a log of this topic fails, and nothing of it is kept."""
        self._add_disk("write", topic, error, count)

    def fail_next_sync(self, topic: str | None = None, error: str = "EIO", *, count: int = 1) -> None:
        """The next sync of a log of this topic fails: the partition takes no writes before a restart."""
        self._add_disk("sync", topic, error, count)

    def delay(self, api: Api = None, *, milliseconds: int, count: int = 1) -> None:
        """Send the answers to the next requests (of this API, such as "fetch") so much later."""
        self._add_answer(api, milliseconds, count)

    def drop_next(self, api: Api = None, *, count: int = 1) -> None:
        """Do what the next requests (of this API) ask, then close their connections instead of answering."""
        self._add_answer(api, None, count)

    def drop_connection(self, count: int = 1) -> None:
        """The same, whatever is asked next."""
        self.drop_next(None, count=count)

    def clear(self) -> None:
        """Forget every fault that has not struck."""
        with self._lock:
            self._disk.clear()
            self._answers.clear()

    def _add_disk(self, operation: str, topic: str | None, error: str, count: int) -> None:
        number = getattr(errno, error, None)
        if not isinstance(number, int):
            raise ValueError(f"{error!r} is no error of this system: say ENOSPC, EIO, EDQUOT ...")
        with self._lock:
            self._disk.append(_DiskFault(count, operation, topic, number))

    def _add_answer(self, api: Api, delay_ms: int | None, count: int) -> None:
        if isinstance(api, str):
            api = ApiKey[api.upper()]
        with self._lock:
            self._answers.append(_AnswerFault(count, api, delay_ms))

    # --- where they strike ---------------------------------------------------------------------------------------

    def check_disk(self, operation: str, path: str) -> None:
        """Called by `FaultyFiles` before each write and sync; raises OSError if a fault was waiting for it."""
        if not self._disk:
            return
        match = _LOG_FILE.fullmatch(path)
        if match is None:
            return
        with self._lock:
            for fault in self._disk:
                if fault.strikes(operation, match["topic"]):
                    _use_up(self._disk, fault)
                    raise OSError(fault.error, os.strerror(fault.error), path)

    def dispatch(self, broker: Broker, call: Call) -> None:
        """Takes the place of `handlers.dispatch` in the listener."""
        fault = self._answer_fault(call.header.api_key) if self._answers else None
        if fault is not None:
            call.client = _FaultyClient(call.client, fault.delay_ms)
        dispatch(broker, call)

    def _answer_fault(self, api_key: int) -> _AnswerFault | None:
        with self._lock:
            for fault in self._answers:
                if fault.api is None or fault.api == api_key:
                    _use_up(self._answers, fault)
                    return fault
        return None


FaultKind = TypeVar("FaultKind", bound=_Fault)


def _use_up(faults: list[FaultKind], fault: FaultKind) -> None:
    fault.count -= 1
    if not fault.count:
        faults.remove(fault)


class _FaultyClient:
    """Stands before a call's client and lets the answer come late, or the connection be closed instead."""

    def __init__(self, client: Client, delay_ms: int | None) -> None:
        self.host = client.host
        self.local_address = client.local_address
        self._client = client
        self._delay_ms = delay_ms

    def answered(self, call: Call, pieces: list[Piece] | None) -> None:
        if self._delay_ms is None:
            call.on_close = None
            self._client.dropped(call, "a test asked for the connection to be dropped")
            return
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._delay_ms / 1000, self._client.answered, call, pieces)
        # The handler is done with the call; only the answer may still be called off.
        call.on_close = timer.cancel

    def settled(self) -> None:
        raise AssertionError("Only a connection takes the plain lane.")

    def dropped(self, call: Call, reason: str) -> None:
        self._client.dropped(call, reason)
