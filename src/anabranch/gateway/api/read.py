"""`GET /v1/topics/{topic}/partitions/{partition}/records`: read records, and wait for them.

    ?offset=12 | ?time=2026-01-31T12:00:00Z | ?from=earliest|latest     where to begin; by default at the first record
    &max_records=  &max_bytes=  &wait_ms=                               how much, and how long to wait for the first
    &values=auto|string|base64                                          how keys and values are shown

Answered as JSON with `next_offset`, where the next request goes on; as lines with Accept: application/x-ndjson; with
Accept: application/octet-stream the value of one record as it is. An offset beyond the end is an empty answer.
"""

from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from anabranch.gateway.calls import EARLIEST, LATEST, Fetched
from anabranch.gateway.http.deadline import extend_deadline
from anabranch.gateway.http.queries import LONG_MAX, check_known, one_of, time_ms, whole, whole_or, wrong
from anabranch.gateway.http.responses import HeldAnswer
from anabranch.gateway.read.reading import Read, read_records
from anabranch.gateway.record_json import FORMS, record_json
from anabranch.record.records import Record

if TYPE_CHECKING:
    from anabranch.gateway.gateway import Gateway

NDJSON = "application/x-ndjson"
PARAMETERS = ("offset", "time", "from", "max_records", "max_bytes", "wait_ms", "values")
STARTS = ("offset", "time", "from")
RECORDS_DEFAULT, RECORDS_MAX = 500, 10_000
BYTES_DEFAULT, BYTES_MAX = 2**20, 8 * 2**20
WAITING_BYTES_MAX = 64 * 1024
"""What one who waited gets at first: of those there may be many at once."""
VALUE_HEADERS_BYTES_MAX = 3072
"""Of an answer that is a value as it is: proxies take 4 KiB of headers unless they are told otherwise."""
LOAD_MS = 1000
"""How long one waits who did not ask to, for records that are there and not here."""
RESERVED_BYTES_MIN = 2**20
"""However little is asked for: one record always goes."""
WAITED_BYTES_MAX = 512 * 1024
"""What one who waited may get without having kept room for it."""
JSON_GROWS_BY = 3
"""What an answer costs for each byte that was fetched, roughly."""


class Wanted(NamedTuple):
    topic: str
    partition: int
    records_max: int
    bytes_max: int
    wait_ms: int
    form: str
    kind: str


class Found(NamedTuple):
    read: Read
    body: bytes
    """What is answered, but for a value as it is."""
    end_offset: int
    reserved: int
    """Bytes of the gateway's memory that this holds."""

    @property
    def held_bytes(self) -> int:
        """What it takes until it is answered."""
        return len(self.body) + sum(self.read.sizes)


def routes(gateway: "Gateway") -> list[BaseRoute]:
    reading = Reading(gateway)
    return [
        Route("/v1/topics/{topic}/partitions/{partition}/records", reading.get, methods=["GET"]),
    ]


class Reading:
    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway

    async def get(self, request: Request) -> Response:
        wanted = self._wanted(request)
        extend_deadline(wanted.wait_ms)
        self._gateway.calls.leader(wanted.topic, wanted.partition)  # There is such a partition.
        start = await self._start(request, wanted)
        found = await self._read_now(wanted, start)
        if found.read.records:
            return self._answer(wanted, found)
        if found.read.next_offset < found.end_offset:
            # There are records, which have to come from another broker or the object store first.
            wanted = wanted._replace(wait_ms=max(wanted.wait_ms, LOAD_MS))
        if wanted.wait_ms > 0:
            self._let_go(found)
            found = await self._read_later(wanted, found.read.next_offset)
        return self._answer(wanted, found)

    def _wanted(self, request: Request) -> Wanted:
        check_known(request, PARAMETERS)
        kind = _kind(request)
        return Wanted(
            request.path_params["topic"],
            whole(request.path_params["partition"], "partition"),
            1 if kind == "value" else _within(request, "max_records", RECORDS_DEFAULT, RECORDS_MAX),
            _within(request, "max_bytes", BYTES_DEFAULT, BYTES_MAX),
            min(whole_or(request, "wait_ms", 0), self._gateway.poll_ms_max),
            one_of(request, "values", FORMS),
            kind,
        )

    async def _start(self, request: Request, wanted: Wanted) -> int:
        given = [name for name in STARTS if name in request.query_params]
        if len(given) > 1:
            raise wrong(f"{given[0]} and {given[1]} both say where to begin: leave one out.")
        calls, query = self._gateway.calls, request.query_params
        if "offset" in query:
            return whole(query["offset"], "offset", LONG_MAX)
        if "time" in query:
            offset, _ = await calls.list_offsets(
                wanted.topic, wanted.partition, time_ms(query["time"], "time")
            )
            if offset >= 0:
                return offset
        is_first = "time" not in query and one_of(request, "from", ("earliest", "latest")) == "earliest"
        offset, _ = await calls.list_offsets(wanted.topic, wanted.partition, EARLIEST if is_first else LATEST)
        return offset

    # --- reading -------------------------------------------------------------------------------------------------

    async def _read_now(self, wanted: Wanted, start: int) -> Found:
        """What is there. Room in memory is kept before it is fetched; for one record that needs more, it is fetched
        again."""
        reserved = max(wanted.bytes_max, RESERVED_BYTES_MIN) * JSON_GROWS_BY
        while True:
            found = await self._read_within(wanted, start, reserved)
            needed = found.held_bytes
            if needed <= reserved:
                self._gateway.bodies.give(reserved - needed)
                return found._replace(reserved=needed)
            self._gateway.bodies.give(reserved)
            reserved = needed
            del found

    async def _read_within(self, wanted: Wanted, start: int, reserved: int) -> Found:
        await self._gateway.hold(reserved)
        try:
            fetched = await self._gateway.calls.fetch(
                wanted.topic, wanted.partition, start, bytes_max=wanted.bytes_max
            )
            return await self._found(wanted, start, fetched)
        except BaseException:
            self._gateway.bodies.give(reserved)
            raise

    async def _read_later(self, wanted: Wanted, start: int) -> Found:
        """What comes while one waits; an empty answer when the time is up, or the node stops."""
        clock = self._gateway.clock
        end_ms = clock.monotonic_ms() + wanted.wait_ms
        while True:
            fetched = await self._gateway.poll(
                self._gateway.calls.fetch(
                    wanted.topic,
                    wanted.partition,
                    start,
                    bytes_max=min(wanted.bytes_max, WAITING_BYTES_MAX),
                    wait_ms=max(0, end_ms - clock.monotonic_ms()),
                )
            )
            if fetched is None:
                return Found(Read([], start), _body(wanted, Read([], start), -1, -1), -1, 0)
            found = await self._found(wanted, start, fetched)
            if found.held_bytes > WAITED_BYTES_MAX:
                del found
                return await self._read_now(wanted, start)
            if found.read.records or clock.monotonic_ms() >= end_ms:
                return found
            start = found.read.next_offset

    async def _found(self, wanted: Wanted, start: int, fetched: Fetched) -> Found:
        unpacked_max = self._gateway.settings.batch_decompressed_bytes_max

        def task() -> tuple[Read, bytes]:
            read = read_records(
                fetched.batches,
                start,
                records_max=wanted.records_max,
                bytes_max=wanted.bytes_max,
                unpacked_bytes_max=unpacked_max,
                shortens=wanted.kind != "value",
            )
            return read, _body(wanted, read, fetched.start_offset, fetched.high_watermark)

        read, body = await self._gateway.calls.decoded(fetched.batches, task)
        return Found(read, body, fetched.high_watermark, 0)

    # --- answering -----------------------------------------------------------------------------------------------

    def _let_go(self, found: Found) -> None:
        if found.reserved:
            self._gateway.bodies.give(found.reserved)

    def _answer(self, wanted: Wanted, found: Found) -> Response:
        headers = {"cache-control": "no-store", "x-anabranch-next-offset": str(found.read.next_offset)}
        if wanted.kind == "value":
            return self._value_answer(wanted, found, headers)
        if wanted.kind == "lines":
            return HeldAnswer(found.body, NDJSON, headers, lambda: self._let_go(found))
        return HeldAnswer(found.body, "application/json", headers, lambda: self._let_go(found))

    def _value_answer(self, wanted: Wanted, found: Found, headers: dict[str, str]) -> Response:
        """204: there is no record yet, or one without a value; the headers say which."""
        record = found.read.records[0] if found.read.records else None
        if record is not None:
            headers |= _value_headers(wanted, record)
        if record is None or record.value is None:
            self._let_go(found)
            return Response(b"", 204, headers)
        return HeldAnswer(record.value, "application/octet-stream", headers, lambda: self._let_go(found))


def _kind(request: Request) -> str:
    accept = request.headers.get("accept", "").lower()
    if "ndjson" in accept or "jsonl" in accept:
        return "lines"
    return "value" if "octet-stream" in accept else "json"


def _within(request: Request, name: str, default: int, highest: int) -> int:
    return max(1, min(whole_or(request, name, default), highest))


def _body(wanted: Wanted, read: Read, start_offset: int, end_offset: int) -> bytes:
    if wanted.kind == "value":
        return b""
    lines = [record_json(record, None, wanted.form) for record in read.records]
    if wanted.kind == "lines":
        return b"".join(line + b"\n" for line in lines)
    places = read.next_offset, start_offset, end_offset
    lines[:1] = [b'{"records":[' + b"".join(lines[:1])]
    return b",".join(lines) + b'],"next_offset":"%d","start_offset":"%d","end_offset":"%d"}\n' % places


def _value_headers(wanted: Wanted, record: Record) -> dict[str, str]:
    """All of a record but its value. Where bytes do not fit into a header they are written as in a URL; what is longer
    than clients and proxies take is left out, and said to be."""
    headers = {
        "x-anabranch-partition": str(wanted.partition),
        "x-anabranch-offset": str(record.offset),
        "x-anabranch-timestamp": str(record.timestamp),
    }
    parts = {"key": _key_header(record), "headers": _record_headers(record)}
    room, omitted = VALUE_HEADERS_BYTES_MAX, []
    for name, part in parts.items():
        size = sum(len(each) + len(held) + 4 for each, held in part.items())
        if size > room:
            omitted.append(name)
        else:
            room -= size
            headers |= part
    return headers | ({"x-anabranch-omitted": ", ".join(omitted)} if omitted else {})


def _key_header(record: Record) -> dict[str, str]:
    return {} if record.key is None else {"x-anabranch-key": quote(record.key, safe=" ")}


def _record_headers(record: Record) -> dict[str, str]:
    return {
        f"x-anabranch-header-{quote(name.encode('utf-8', 'surrogateescape'), safe='')}": quote(held, safe=" ")
        for name, held in record.headers
        if held is not None
    }
