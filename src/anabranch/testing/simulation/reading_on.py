"""Clients of a simulated cluster that read on: from an offset, at one broker, as far as it shows records."""

from collections.abc import Callable
from typing import NamedTuple

from anabranch.record.batch import batch_spans, read_header
from anabranch.testing.in_process_client import Pending
from anabranch.testing.simulation.cluster_clients import ClusterClient, Found
from anabranch.testing.simulation.simulator import SimulationError, fetch_request, records_from
from anabranch.testing.simulation.witness import Place
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode

ANSWERS_MAX = 400
"""To one reader: more are one who never comes to an end."""


class Reading(NamedTuple):
    """What one broker showed from an offset on."""

    asked: int
    """From which offset on; if that had been removed, from where the partition began."""
    start: int
    """Where the partition began, as the last answer had it."""
    found: Found
    next_offset: int
    high_watermark: int
    code: ErrorCode | None
    """Why it ended. None: nobody answered."""


class ReadingClient(ClusterClient):
    fetch_wait_ms = 100
    may_skip = False
    """What was removed while it read is passed over. Else that ends the reading, unless it is at its beginning."""

    def read_on(
        self,
        place: Place,
        broker_id: int,
        offset: int,
        then: Callable[[Reading], None],
        *,
        once: bool = False,
    ) -> None:
        """As far as that broker gives it, or one answer of it; where the beginning was removed, as a consumer that is
        to begin at the earliest."""
        _UnderWay(self, place, broker_id, offset, then, once).ask()


class _UnderWay:
    """One reading, until it ends."""

    def __init__(
        self,
        client: ReadingClient,
        place: Place,
        broker_id: int,
        offset: int,
        then: Callable[[Reading], None],
        is_once: bool,
    ) -> None:
        self._client, self._place, self._broker_id = client, place, broker_id
        self._then, self._is_once = then, is_once
        self._asked = self._next = offset
        self._start = self._high_watermark = -1
        self._found: Found = []
        self._answers = 0

    def ask(self) -> None:
        wanted = {**fetch_request(*self._place, self._next), "max_wait_ms": self._client.fetch_wait_ms}
        self._client.send(self._broker_id, ApiKey.FETCH, 12, wanted).on_settled = self._heard

    def _end(self, code: ErrorCode | None) -> None:
        self._then(Reading(self._asked, self._start, self._found, self._next, self._high_watermark, code))

    def _heard(self, pending: Pending) -> None:
        self._answers += 1
        if pending.body is None or self._answers > ANSWERS_MAX:
            self._end(None)
            return
        answer = pending.body["responses"][0]["partitions"][0]
        code = ErrorCode(answer["error_code"])
        self._start, self._high_watermark = answer["log_start_offset"], answer["high_watermark"]
        was_removed = code is ErrorCode.OFFSET_OUT_OF_RANGE and self._next < self._start
        if was_removed and (self._client.may_skip or not self._found):
            self._begin_later()
        elif code or not answer["records"]:
            self._end(code)
        else:
            self._take(bytes(answer["records"]))

    def _begin_later(self) -> None:
        if not self._found:
            self._asked = self._start
        self._next = self._start
        self.ask()

    def _take(self, data: bytes) -> None:
        more = list(records_from(data, self._next))
        if any(offset >= self._high_watermark for offset, _ in more):
            raise SimulationError(f"{self._place} shows records beyond {self._high_watermark}: {more}")
        self._found.extend(more)
        *_, (first, last) = batch_spans(data)
        self._next = read_header(data[first:last]).next_offset
        if self._is_once:
            self._end(ErrorCode.NONE)
        else:
            self.ask()
