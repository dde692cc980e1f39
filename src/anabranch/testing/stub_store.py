"""StubStore: as much of S3 as we use, in memory, quick, and as slow as it is told to be: for benchmarks and for users'
tests. Nothing is signed, every bucket exists, and everything is gone when it ends.

    with StubStore(put_ms=50) as store:             # a thread of this process
        url = f"s3://bucket?endpoint={store.endpoint}"

    python -m anabranch.testing.stub_store --put-ms 50          # a process of its own, prints its endpoint

It knows PUT (with If-None-Match), GET and HEAD (with ranges), DELETE of one and of many, and lists in pages.
"""

import argparse
import asyncio
import re
import threading
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from types import TracebackType
from typing import NamedTuple, Self
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

PAGE_MAX = 1000
CALL_SECONDS_MAX = 10


class Stored(NamedTuple):
    content: bytes
    modified: datetime


class Ask(NamedTuple):
    """One request, taken apart."""

    method: str
    key: str
    """With the bucket before it."""
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: bytes

    @property
    def kind(self) -> str:
        if self.method == "POST" and "delete" in self.query:
            return "DELETE"
        return "LIST" if self.method == "GET" and "list-type" in self.query else self.method


class Answer(NamedTuple):
    status: str
    body: bytes = b""
    headers: str = ""


class StubStore:
    def __init__(self, *, put_ms: int = 0, get_ms: int = 0, host: str = "127.0.0.1", port: int = 0) -> None:
        self._delays_s = {"PUT": put_ms / 1000, "GET": get_ms / 1000}
        self._address = host, port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="stub-store", daemon=True)
        self._tasks: set[asyncio.Task[None]] = set()
        self._objects: dict[str, Stored] = {}
        self._keys: list[str] = []
        """In order."""
        self.requests: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        """Of bodies: PUT those that came, GET those that were sent."""

    # --- life --------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self.open(), self._loop).result(CALL_SECONDS_MAX)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(CALL_SECONDS_MAX)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def open(self) -> None:
        """In the running loop."""
        self._server = await asyncio.start_server(self._serve, *self._address, limit=2**20, backlog=512)
        self._address = self._server.sockets[0].getsockname()[:2]

    async def _close(self) -> None:
        self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # Aborted transports close their sockets in the loop's next turn.

    @property
    def endpoint(self) -> str:
        return "http://{}:{}".format(*self._address)

    # --- connections -------------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            # Only the end of it all cancels; a stream's task that was cancelled makes asyncio complain.
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while True:
                    ask = await read_ask(reader)
                    self.requests[ask.kind] += 1
                    await asyncio.sleep(self._delays_s.get(ask.kind, 0))
                    write_answer(writer, self.answer(ask), is_head=ask.method == "HEAD")
                    await writer.drain()
                    if ask.headers.get("connection", "").lower() == "close":
                        writer.close()  # What is still to be sent is sent.
                        await writer.wait_closed()
                        return
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    # --- what it does ------------------------------------------------------------------------------------------

    def answer(self, ask: Ask) -> Answer:
        match ask.kind:
            case "PUT":
                return self._put(ask)
            case "GET" | "HEAD":
                return self._get(ask)
            case "LIST":
                return self._list(ask)
            case "DELETE":
                return self._delete(ask)
            case _:
                return _refusal("405 Method Not Allowed", "MethodNotAllowed")

    def _put(self, ask: Ask) -> Answer:
        if ask.key in self._objects and ask.headers.get("if-none-match") == "*":
            return _refusal("412 Precondition Failed", "PreconditionFailed")
        if ask.key not in self._objects:
            insort(self._keys, ask.key)
        self._objects[ask.key] = Stored(ask.body, datetime.now(UTC))
        self.bytes["PUT"] += len(ask.body)
        return Answer("200 OK", headers='ETag: "stub"\r\n')

    def _get(self, ask: Ask) -> Answer:
        stored = self._objects.get(ask.key)
        if stored is None:
            return _refusal("404 Not Found", "NoSuchKey")
        size = len(stored.content)
        facts = f'ETag: "stub"\r\nLast-Modified: {stored.modified:%a, %d %b %Y %H:%M:%S GMT}\r\n'
        asked = ask.headers.get("range")
        if asked is None:
            self.bytes["GET"] += size
            return Answer("200 OK", stored.content, facts)
        start, end = range_of(asked, size)
        if start >= end:
            return _refusal("416 Range Not Satisfiable", "InvalidRange")
        self.bytes["GET"] += end - start
        facts += f"Content-Range: bytes {start}-{end - 1}/{size}\r\n"
        return Answer("206 Partial Content", stored.content[start:end], facts)

    def _delete(self, ask: Ask) -> Answer:
        if ask.method == "DELETE":
            self._remove(ask.key)
            return Answer("204 No Content")
        bucket = ask.key.split("/", 1)[0]
        names = re.findall(r"<Key>([^<]*)</Key>", ask.body.decode())
        for name in names:
            self._remove(f"{bucket}/{unescape(name)}")
        done = "".join(f"<Deleted><Key>{name}</Key></Deleted>" for name in names)
        return Answer("200 OK", f"<DeleteResult>{done}</DeleteResult>".encode())

    def _remove(self, key: str) -> None:
        if self._objects.pop(key, None) is not None:
            del self._keys[bisect_left(self._keys, key)]

    def _list(self, ask: Ask) -> Answer:
        bucket = ask.key.split("/", 1)[0] + "/"
        prefix = bucket + ask.query.get("prefix", [""])[0]
        after = ask.query.get("continuation-token") or ask.query.get("start-after")
        first = bisect_left(self._keys, prefix)
        if after is not None:
            first = max(first, bisect_right(self._keys, bucket + after[0]))
        page = []
        for key in self._keys[first : first + PAGE_MAX + 1]:
            if not key.startswith(prefix):
                break
            page.append(key)
        more, page = len(page) > PAGE_MAX, page[:PAGE_MAX]
        lines = "".join(self._line(key, key[len(bucket) :]) for key in page)
        next_token = (
            f"<NextContinuationToken>{escape(page[-1][len(bucket) :])}</NextContinuationToken>"
            if more
            else ""
        )
        head = f"<IsTruncated>{'true' if more else 'false'}</IsTruncated>{next_token}"
        return Answer("200 OK", f"<ListBucketResult>{head}{lines}</ListBucketResult>".encode())

    def _line(self, key: str, name: str) -> str:
        content, modified = self._objects[key]
        return (
            f"<Contents><Key>{escape(name)}</Key><LastModified>{modified:%Y-%m-%dT%H:%M:%S.000Z}</LastModified>"
            f'<ETag>"stub"</ETag><Size>{len(content)}</Size></Contents>'
        )


# --- HTTP, as much as there is -----------------------------------------------------------------------------------


async def read_ask(reader: asyncio.StreamReader) -> Ask:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ", 2)
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    parts = urlsplit(target)
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    query = parse_qs(parts.query, keep_blank_values=True)
    return Ask(method, unquote(parts.path).strip("/"), query, headers, body)


def write_answer(writer: asyncio.StreamWriter, answer: Answer, *, is_head: bool) -> None:
    head = f"HTTP/1.1 {answer.status}\r\n{answer.headers}Content-Length: {len(answer.body)}\r\n\r\n"
    writer.write(head.encode())
    if not is_head:
        writer.write(answer.body)


def range_of(asked: str, size: int) -> tuple[int, int]:
    """Of `bytes=2-5`, `bytes=2-` or `bytes=-5`."""
    first, _, last = asked.removeprefix("bytes=").partition("-")
    if not first:
        return max(0, size - int(last)), size
    return int(first), min(size, int(last) + 1) if last else size


def _refusal(status: str, code: str) -> Answer:
    return Answer(status, f"<Error><Code>{code}</Code></Error>".encode())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m anabranch.testing.stub_store")
    for kind in ("put", "get"):
        parser.add_argument(f"--{kind}-ms", type=int, default=0)
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()

    async def serve() -> None:
        store = StubStore(put_ms=options.put_ms, get_ms=options.get_ms, port=options.port)
        await store.open()
        print(store.endpoint, flush=True)  # noqa: T201 - That is how its starter learns of it.
        await asyncio.Event().wait()

    asyncio.run(serve())


if __name__ == "__main__":
    main()
