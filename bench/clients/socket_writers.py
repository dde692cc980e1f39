"""Many WebSocket writers in one process, each with one message under way: the next follows its acknowledgement.

    python -m bench.clients.socket_writers --port 8080 --topic t --writers 100 --bytes 100 --seconds 5

Prints one line of JSON. It speaks just enough WebSocket for that (a mask of zeros, frames built once), so that what is
measured is the node and not this process.
"""

import argparse
import asyncio
import json
import random
import re
import struct
import sys
import time
from functools import partial

HANDSHAKE = (
    "GET /v1/ws HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
TEXT, CLOSE, PING, PONG = 1, 8, 9, 10
PUBLISHED = re.compile(rb'"type": ?"published"')


def frame(opcode: int, payload: bytes) -> bytes:
    """A client's frame: masked, with a mask that changes nothing."""
    size = len(payload)
    if size < 126:
        head = struct.pack(">BB", 0x80 | opcode, 0x80 | size)
    elif size < 65536:
        head = struct.pack(">BBH", 0x80 | opcode, 0x80 | 126, size)
    else:
        head = struct.pack(">BBQ", 0x80 | opcode, 0x80 | 127, size)
    return head + bytes(4) + payload


def frames_of(buffer: bytearray) -> list[tuple[int, bytes]]:
    """The whole frames at the start of what a server has sent; they are taken out of it."""
    found, position = [], 0
    while len(buffer) - position >= 2:
        opcode, size, start = buffer[position] & 15, buffer[position + 1], position + 2
        if size == 126:
            if len(buffer) < start + 2:
                break
            size, start = int.from_bytes(buffer[start : start + 2], "big"), start + 2
        elif size == 127:
            if len(buffer) < start + 8:
                break
            size, start = int.from_bytes(buffer[start : start + 8], "big"), start + 8
        if len(buffer) < start + size:
            break
        found.append((opcode, bytes(buffer[start : start + size])))
        position = start + size
    del buffer[:position]
    return found


def reading(rng: random.Random, size: int) -> str:
    """A small JSON object as devices send them, with numbers of its own."""
    text = json.dumps(
        {
            "device": f"d-{rng.randrange(10**6):06}",
            "time": 1_767_225_600_000 + rng.randrange(10**9),
            "celsius": round(rng.uniform(-20, 40), 2),
            "humidity": round(rng.random(), 3),
        }
    )
    return text[:size].ljust(size)


class Writer(asyncio.Protocol):
    def __init__(self, port: int, message: bytes, times_us: list[float]) -> None:
        self._port = port
        self._frame = frame(TEXT, message)
        self._times_us = times_us
        self._buffer = bytearray()
        self._sent_at = 0.0
        self._is_open = False
        self.is_measured = False
        self.acknowledged = 0
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.goes_on = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(HANDSHAKE.format(port=self._port).encode())

    def connection_lost(self, error: Exception | None) -> None:
        if not self.opened.done():
            self.opened.set_exception(RuntimeError(f"the handshake failed: {bytes(self._buffer[:300])!r}"))
        self._end("the connection was lost")

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._is_open:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0 or b" 101 " not in self._buffer[:20]:
                return
            del self._buffer[: end + 4]
            self._is_open = True
            self.opened.set_result(None)
        for opcode, payload in frames_of(self._buffer):
            self._take(opcode, payload)

    def _take(self, opcode: int, payload: bytes) -> None:
        if opcode == PING:
            self._transport.write(frame(PONG, payload))
        elif opcode == TEXT and PUBLISHED.search(payload):
            self.acknowledged += 1
            if self.is_measured:
                self._times_us.append((time.perf_counter() - self._sent_at) * 1e6)
            if self.goes_on:
                self.send()
            else:
                self._end("")
        else:
            self._end(f"instead of an acknowledgement came {payload[:300]!r}")

    def say_once(self) -> None:
        """One message; `ended` tells that it is acknowledged."""
        self.goes_on = False
        self.ended = asyncio.get_running_loop().create_future()
        self.send()

    def send(self) -> None:
        self._sent_at = time.perf_counter()
        self._transport.write(self._frame)

    def _end(self, why: str) -> None:
        self.goes_on = False
        if not self.ended.done():
            self.ended.set_result(why)

    def close(self) -> None:
        self._transport.abort()


async def run(
    port: int, topic: str, writers: int, size: int, seconds: float, warm_up: float
) -> dict[str, float]:
    loop = asyncio.get_running_loop()
    times_us: list[float] = []
    rng = random.Random(0)
    made = []
    for _ in range(writers):
        message = json.dumps(
            {"type": "publish", "id": 1, "topic": topic, "value": reading(rng, size)}
        ).encode()
        _, writer = await loop.create_connection(partial(Writer, port, message, times_us), "127.0.0.1", port)
        made.append(writer)
    await asyncio.gather(*(each.opened for each in made))
    for each in made:
        each.send()
    await asyncio.sleep(warm_up)
    started, cpu = time.perf_counter(), time.process_time()
    for each in made:
        each.is_measured = True
    await asyncio.sleep(seconds)
    for each in made:
        each.goes_on = False
    reasons = await asyncio.wait_for(asyncio.gather(*(each.ended for each in made)), 30)
    took, cpu = time.perf_counter() - started, time.process_time() - cpu
    for each in made:
        each.close()
    if any(reasons):
        raise RuntimeError(next(filter(None, reasons)))
    times_us.sort()
    return {
        "records": len(times_us),
        "records_with_warm_up": sum(each.acknowledged for each in made),
        "seconds": took,
        "generator_cores": cpu / took,
        "p50_us": times_us[len(times_us) // 2],
        "p99_us": times_us[len(times_us) * 99 // 100],
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--writers", type=int, default=100)
    parser.add_argument("--bytes", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--warm-up", type=float, default=1.0)
    given = parser.parse_args()
    answer = asyncio.run(
        run(given.port, given.topic, given.writers, given.bytes, given.seconds, given.warm_up)
    )
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
