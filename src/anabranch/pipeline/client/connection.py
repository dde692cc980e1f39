"""One blocking connection to a broker: requests out, answers in, in the order they were asked.

A request may be sent before the answer to the one before was read: that is how a reader has the next bytes on
their way while it unpacks the last. Network trouble of any kind is `TryAgainError`, after which the connection is of
no use; an answer that is not Kafka is `ProtocolError`.

The versions are fixed: every node of ours serves them, and every Kafka since 3.1 all but those about objects
and branches.
"""

import socket
import struct
from collections import deque

from anabranch.errors import ProtocolError, TryAgainError
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.codec import Body, decode_response, encode_request
from anabranch.wire.header import parse_response_header, request_header

VERSIONS = {
    ApiKey.FETCH: 13,
    ApiKey.LIST_OFFSETS: 7,
    ApiKey.METADATA: 12,
    ApiKey.OFFSET_COMMIT: 8,
    ApiKey.OFFSET_FETCH: 7,
    ApiKey.FIND_COORDINATOR: 4,
    ApiKey.DESCRIBE_CONFIGS: 4,
    ApiKey.DESCRIBE_LOG_DIRS: 4,
    ApiKey.DESCRIBE_OBJECTS: 0,
    ApiKey.NAME_OBJECTS: 0,
    ApiKey.REPLACE_OBJECTS: 0,
    ApiKey.DESCRIBE_BRANCHES: 0,
}

CLIENT_ID = "anabranch-pipeline"
CONNECT_SECONDS_MAX = 10.0
ANSWER_SECONDS_MAX = 60.0
ANSWER_BYTES_MAX = 2**28

_SIZE = struct.Struct(">i")

Address = tuple[str, int]


class Connection:
    def __init__(self, address: Address) -> None:
        self._name = f"{address[0]}:{address[1]}"
        try:
            self._socket = socket.create_connection(address, CONNECT_SECONDS_MAX)
            self._socket.settimeout(ANSWER_SECONDS_MAX)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            raise TryAgainError(f"{self._name} cannot be reached: {error.strerror or error}") from error
        self._buffer = bytearray()
        self._unanswered: deque[tuple[int, ApiKey]] = deque()
        self._correlation_id = 0

    def ask(self, api: ApiKey, body: Body) -> Body:
        self.send(api, body)
        return self.receive()

    def send(self, api: ApiKey, body: Body) -> None:
        version = VERSIONS[api]
        self._correlation_id += 1
        request = request_header(api, version, self._correlation_id, CLIENT_ID) + encode_request(
            api, version, body
        )
        try:
            self._socket.sendall(_SIZE.pack(len(request)) + request)
        except OSError as error:
            raise self._trouble(error) from error
        self._unanswered.append((self._correlation_id, api))

    def receive(self) -> Body:
        """The answer to the oldest request that has none; its records are good until the next is received."""
        expected, api = self._unanswered.popleft()
        (size,) = _SIZE.unpack(self._read(_SIZE.size))
        if not 0 < size <= ANSWER_BYTES_MAX:
            raise ProtocolError(f"{self._name} answers with {size} bytes: is it a Kafka port?")
        frame = self._read(size)
        version = VERSIONS[api]
        answered, start = parse_response_header(frame, 0, size, api, version)
        if answered != expected:
            raise ProtocolError(f"{self._name} answers request {answered} where {expected} was asked.")
        return decode_response(api, version, frame, start, size)

    def close(self) -> None:
        self._socket.close()

    def _read(self, count: int) -> memoryview:
        if len(self._buffer) < count:
            self._buffer = bytearray(
                count
            )  # Kept for the answers to come: fresh memory costs a quarter of the time.
        view, filled = memoryview(self._buffer)[:count], 0
        while filled < count:
            try:
                received = self._socket.recv_into(view[filled:])
            except OSError as error:
                raise self._trouble(error) from error
            if not received:
                raise TryAgainError(f"{self._name} closed the connection")
            filled += received
        return view

    def _trouble(self, error: OSError) -> TryAgainError:
        return TryAgainError(f"{self._name} does not answer: {error.strerror or error}")
