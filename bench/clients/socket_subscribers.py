"""Many WebSocket subscribers of one topic in one process, and a writer that keeps them busy.

    python -m bench.clients.socket_subscribers --port 8080 --topic t --subscribers 1000 --records 200

Each checks that it hears every record once and in order. Prints one line of JSON when all have heard all of them.
"""

import argparse
import asyncio
import json
import random
import re
import sys
import time
from functools import partial

from bench.clients.socket_writers import HANDSHAKE, TEXT, Writer, frame, frames_of, reading

OFFSETS = re.compile(rb'"offset":"(\d+)"')
SECONDS_MAX = 120.0
BURST = 20


class Subscriber(asyncio.Protocol):
    """Counts what it hears, and checks that it is the next."""

    def __init__(self, port: int, topic: str, count: int) -> None:
        self._port = port
        self._message = json.dumps(
            {"type": "subscribe", "id": 1, "topic": topic, "credit": 2**31 - 1}
        ).encode()
        self._count = count
        self._buffer = bytearray()
        self._is_open = False
        self.next_offset = 0
        loop = asyncio.get_running_loop()
        self.subscribed: asyncio.Future[None] = loop.create_future()
        self.heard_all: asyncio.Future[None] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(HANDSHAKE.format(port=self._port).encode())

    def connection_lost(self, error: Exception | None) -> None:
        for each in (self.subscribed, self.heard_all):
            if not each.done():
                each.set_exception(ConnectionError(f"lost after {self.next_offset} records"))

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._is_open:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            assert self._buffer.startswith(b"HTTP/1.1 101"), bytes(self._buffer)
            del self._buffer[: end + 4]
            self._is_open = True
            self.transport.write(frame(TEXT, self._message))
        for opcode, payload in frames_of(self._buffer):
            if opcode == TEXT:
                self._hear(payload)

    def _hear(self, payload: bytes) -> None:
        if b'"type":"subscribed"' in payload:
            self.subscribed.set_result(None)
            return
        assert b'"type":"records"' in payload, payload
        offsets = [int(each) for each in OFFSETS.findall(payload)]
        assert offsets == list(range(self.next_offset, self.next_offset + len(offsets)))
        self.next_offset += len(offsets)
        if self.next_offset == self._count:
            self.heard_all.set_result(None)


async def crowd(port: int, topic: str, subscribers: int, records: int, size: int = 100) -> dict[str, float]:
    """What it took until everybody had heard everything."""
    loop = asyncio.get_running_loop()
    made = [
        (await loop.create_connection(partial(Subscriber, port, topic, records), "127.0.0.1", port))[1]
        for _ in range(subscribers)
    ]
    try:
        await asyncio.gather(*(each.subscribed for each in made))
        started, cpu = time.perf_counter(), time.process_time()
        await publish(port, topic, records, size)
        await asyncio.gather(*(each.heard_all for each in made))
        took, cpu = time.perf_counter() - started, time.process_time() - cpu
        heard = sum(each.next_offset for each in made)
        return {"deliveries": heard, "seconds": took, "generator_cores": cpu / took}
    finally:
        for each in made:
            each.transport.abort()


async def publish(port: int, topic: str, records: int, size: int) -> None:
    """In several bursts, so that they are heard in many messages and not in one."""
    loop, rng, times_us = asyncio.get_running_loop(), random.Random(0), list[float]()
    message = json.dumps({"type": "publish", "id": 1, "topic": topic, "value": reading(rng, size)}).encode()
    writers = [
        (await loop.create_connection(partial(Writer, port, message, times_us), "127.0.0.1", port))[1]
        for _ in range(BURST)
    ]
    await asyncio.gather(*(each.opened for each in writers))
    for _ in range(records // BURST):
        for each in writers:
            each.say_once()
        await asyncio.gather(*(each.ended for each in writers))
    for each in writers:
        each.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--subscribers", type=int, default=1000)
    parser.add_argument("--records", type=int, default=200)
    given = parser.parse_args()
    work = crowd(given.port, given.topic, given.subscribers, given.records)
    answer = asyncio.run(asyncio.wait_for(work, SECONDS_MAX))
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
