"""RawSocket: a WebSocket by hand, for tests that send what no library would: broken frames, half a message, nothing.

with RawSocket(address) as link:
    link.say({"type": "publish", "id": 1, "topic": "t", "value": "x"})
    assert link.hear()["type"] == "published"
    link.send_frame(TEXT, b"\\xff")
    assert link.closed()[0] == 1007
"""

import json
import socket
import struct
from typing import Any, Self

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
SECONDS_MAX = 20.0


class HandshakeRefused(Exception):
    """The server answered something else than 101."""

    def __init__(self, head: str, body: bytes) -> None:
        super().__init__(f"{head}\n{body.decode(errors='replace')}")
        self.status = int(head.split(" ")[1])
        self.body = body


class RawSocket:
    def __init__(
        self,
        address: str,
        path: str = "/v1/ws",
        headers: dict[str, str] | None = None,
        receive_bytes: int = 0,
    ) -> None:
        """`receive_bytes`: a small buffer of the system's, for a client that does not read."""
        host, _, port = address.rpartition(":")
        self.link = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if receive_bytes:
            self.link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.link.settimeout(SECONDS_MAX)
        self.link.connect((host, int(port)))
        self._buffer = bytearray()
        lines = {
            "Host": address,
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
            **(headers or {}),
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self.link.sendall(f"GET {path} HTTP/1.1\r\n{head}\r\n".encode())
        answer = self._until(b"\r\n\r\n").decode()
        if not answer.startswith("HTTP/1.1 101"):
            refused = HandshakeRefused(answer.split("\r\n")[0], self._rest(answer))
            self.link.close()
            raise refused

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.link.close()

    def send_frame(
        self, opcode: int, payload: bytes, *, final: bool = True, masked: bool = True, reserved: int = 0
    ) -> None:
        self.link.sendall(frame(opcode, payload, final=final, masked=masked, reserved=reserved))

    def say(self, message: object) -> None:
        self.send_frame(TEXT, json.dumps(message).encode())

    def hear(self) -> Any:
        """The next message. Pings are answered on the way; a close raises ConnectionError with its code and reason."""
        while True:
            opcode, payload = self.next_frame()
            if opcode == TEXT:
                return json.loads(payload)
            if opcode == PING:
                self.send_frame(PONG, payload)
            elif opcode == CLOSE:
                raise ConnectionError(*_closing(payload))

    def hear_of(self, kind: str) -> Any:
        """The next message of this type; others before it are passed over."""
        while (message := self.hear())["type"] != kind:
            pass
        return message

    def closed(self) -> tuple[int, str]:
        """The code and the reason with which the server closes; (1006, "") if it just hangs up."""
        while True:
            try:
                opcode, payload = self.next_frame()
            except (ConnectionError, EOFError):
                return 1006, ""
            if opcode == CLOSE:
                return _closing(payload)

    def next_frame(self) -> tuple[int, bytes]:
        first, size = self._take(2)
        if size == 126:
            (size,) = struct.unpack(">H", self._take(2))
        elif size == 127:
            (size,) = struct.unpack(">Q", self._take(8))
        return first & 15, self._take(size)

    def _take(self, count: int) -> bytes:
        while len(self._buffer) < count:
            self._more()
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken

    def _until(self, mark: bytes) -> bytes:
        while mark not in self._buffer:
            self._more()
        return self._take(self._buffer.index(mark) + len(mark))

    def _rest(self, head: str) -> bytes:
        """The body of an answer that is not a WebSocket."""
        for line in head.lower().split("\r\n"):
            if line.startswith("content-length:"):
                return self._take(int(line.partition(":")[2]))
        return b""

    def _more(self) -> None:
        piece = self.link.recv(65536)
        if not piece:
            raise EOFError("the server hung up")
        self._buffer += piece


def frame(
    opcode: int, payload: bytes, *, final: bool = True, masked: bool = True, reserved: int = 0
) -> bytes:
    """One frame; the mask of a client is one that changes nothing."""
    size = len(payload)
    first, mask = (0x80 if final else 0) | reserved | opcode, 0x80 if masked else 0
    if size < 126:
        head = struct.pack(">BB", first, mask | size)
    elif size < 65536:
        head = struct.pack(">BBH", first, mask | 126, size)
    else:
        head = struct.pack(">BBQ", first, mask | 127, size)
    return head + (bytes(4) if masked else b"") + payload


def _closing(payload: bytes) -> tuple[int, str]:
    if len(payload) < 2:
        return 1005, ""
    return int.from_bytes(payload[:2], "big"), payload[2:].decode()
