"""ClusterClient: asks a running cluster about itself, or to change, in Kafka's own words. Blocking.

It begins with any address of `bootstrap` that answers and learns the others from it. A question goes to one broker by
its id, or to whichever answers. The version is the newest that both sides know. A connection that broke is opened anew
once, because a broker may have restarted since; then, and for whatever else is wrong, ClusterAnswerError says why. It
is a ClusterBusyError if the same question may be answered later.
"""

import socket
import struct
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Any, Self

from anabranch.config import host_and_port
from anabranch.errors import ClusterAnswerError, ClusterBusyError, ProtocolError, UnsupportedVersionError
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.codec import decode_response, encode_request, versions_of
from anabranch.wire.error_codes import ErrorCode
from anabranch.wire.header import parse_response_header, request_header

Body = dict[str, Any]
Address = tuple[str, int]

ANSWER_BYTES_MAX = 2**28
CONNECT_SECONDS_MAX = 3.0
EACH_SECONDS_MAX = 3.0
"""How long each broker may take to answer when several are asked at once."""
ASKED_AT_ONCE_MAX = 32
_SIZE = struct.Struct(">i")


class _Link:
    """One connection."""

    def __init__(self, address: Address, seconds_max: float) -> None:
        self.socket = socket.create_connection(address, min(CONNECT_SECONDS_MAX, seconds_max))
        self.socket.settimeout(seconds_max)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_id = 0
        self.versions: dict[int, int] = {ApiKey.API_VERSIONS: 0}
        try:
            answer = self.ask(ApiKey.API_VERSIONS, {})
        except BaseException:
            self.socket.close()
            raise
        self.versions = {row["api_key"]: row["max_version"] for row in answer["api_keys"]}

    def ask(self, api: ApiKey, body: Body) -> Body:
        if api not in self.versions:
            raise UnsupportedVersionError(f"{api.name} is not served there")
        version = min(self.versions[api], versions_of(api)[-1])
        self._correlation_id += 1
        request = request_header(api, version, self._correlation_id, "anabranch-cluster")
        request += encode_request(api, version, body)
        self.socket.sendall(_SIZE.pack(len(request)) + request)
        (size,) = _SIZE.unpack(self._read(_SIZE.size))
        if not 0 < size <= ANSWER_BYTES_MAX:
            raise ProtocolError(f"an answer of {size} bytes is not Kafka's")
        frame = self._read(size)
        answered, start = parse_response_header(frame, 0, size, api, version)
        if answered != self._correlation_id:
            raise ProtocolError(f"request {answered} was answered, not {self._correlation_id}")
        return decode_response(api, version, frame, start, size)

    def _read(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            chunk = self.socket.recv(min(count - len(data), 2**20))
            if not chunk:
                raise ConnectionError("the connection was closed")
            data += chunk
        return bytes(data)


class ClusterClient:
    def __init__(self, bootstrap: str, seconds_max: float = 15.0) -> None:
        self._bootstrap = bootstrap
        self._addresses = [_address(part) for part in bootstrap.split(",")]
        self._seconds_max = seconds_max
        self._links: dict[Address, _Link] = {}
        self._brokers: dict[int, Address] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for link in self._links.values():
            link.socket.close()
        self._links.clear()

    # --- asking ------------------------------------------------------------------------------------------------

    def ask(self, api: ApiKey, body: Body, broker: int | None = None) -> Body:
        """The answer of that broker, or of any."""
        if broker is not None and broker not in self._brokers:
            self.metadata([])
        return self._ask(api, body, broker)

    def _ask(self, api: ApiKey, body: Body, broker: int | None) -> Body:
        if broker is not None and broker not in self._brokers:
            raise ClusterAnswerError(
                f"Broker {broker} is not in the cluster at {self._bootstrap}, or is fenced."
            )
        addresses = self._anybody() if broker is None else [self._brokers[broker]]
        problems: list[str] = []
        kind: type[ClusterAnswerError] = ClusterBusyError
        for address in addresses:
            try:
                return self._ask_at(address, api, body)
            except (OSError, ProtocolError) as error:
                kind = kind if isinstance(error, OSError) else ClusterAnswerError
                problems.append(f"{address[0]}:{address[1]}: {_reason(error)}")
        nobody = f"No broker of {self._bootstrap} could" if broker is None else f"Broker {broker} could not"
        raise kind(f"{nobody} answer {api.name} ({'; '.join(problems)}).")

    def ask_each(self, api: ApiKey, bodies: Mapping[int, Body]) -> dict[int, Body | ClusterAnswerError]:
        """The answer of each broker to its own request, or why there is none.

        All are asked side by side, each over a connection of its own: brokers that accept connections and then say
        nothing cost one short wait, not one each.
        """
        if not bodies.keys() <= self._brokers.keys():
            self.metadata([])
        with ThreadPoolExecutor(min(ASKED_AT_ONCE_MAX, max(1, len(bodies)))) as threads:
            answers = threads.map(partial(self._answer_of, api), bodies, bodies.values())
            return dict(zip(bodies, answers, strict=True))

    def _answer_of(self, api: ApiKey, broker: int, body: Body) -> Body | ClusterAnswerError:
        with ClusterClient(self._bootstrap, min(EACH_SECONDS_MAX, self._seconds_max)) as client:
            client._brokers = self._brokers
            try:
                return client._ask(api, body, broker)
            except ClusterAnswerError as error:
                return error

    def _anybody(self) -> list[Address]:
        """Those that already answered, then all we have heard of."""
        known = [*self._links, *self._addresses, *self._brokers.values()]
        return list(dict.fromkeys(known))

    def _ask_at(self, address: Address, api: ApiKey, body: Body) -> Body:
        link = self._links.pop(address, None)
        if link is not None:
            try:
                answer = link.ask(api, body)
            except (OSError, ProtocolError) as error:
                link.socket.close()
                if not isinstance(error, ConnectionError):
                    raise
            else:
                self._links[address] = link
                return answer
        link = _Link(address, self._seconds_max)
        try:
            answer = link.ask(api, body)
        except BaseException:
            link.socket.close()
            raise
        self._links[address] = link
        return answer

    # --- what is asked most ------------------------------------------------------------------------------------

    def metadata(self, topics: list[str] | None = None) -> Body:
        """Brokers, controller, and these topics (None: all). Never creates one."""
        rows = None if topics is None else [{"name": name} for name in topics]
        body = {"topics": rows, "allow_auto_topic_creation": False}
        answer = self.ask(ApiKey.METADATA, body)
        self._brokers = {row["node_id"]: (row["host"], row["port"]) for row in answer["brokers"]}
        return answer

    def ends(self, places: dict[int, list[tuple[str, int]]]) -> dict[tuple[str, int], int]:
        """The high watermark of partitions, asked from their leaders; those that cannot be told are left out."""
        found: dict[tuple[str, int], int] = {}
        for leader, pairs in places.items():
            topics: dict[str, list[Body]] = {}
            for topic, partition in pairs:
                topics.setdefault(topic, []).append({"partition_index": partition, "timestamp": -1})
            rows = [{"name": name, "partitions": partitions} for name, partitions in topics.items()]
            body = {"replica_id": -1, "topics": rows, "timeout_ms": int(self._seconds_max * 1000)}
            try:
                answer = self.ask(ApiKey.LIST_OFFSETS, body, leader)
            except ClusterAnswerError:
                continue  # Its leader is gone: nobody knows now.
            for topic_row in answer["topics"]:
                for row in topic_row["partitions"]:
                    if row["error_code"] == 0:
                        found[topic_row["name"], row["partition_index"]] = row["offset"]
        return found


def wait_for_answer(bootstrap: str, seconds_max: float) -> None:
    """Until any broker there answers."""
    deadline = time.monotonic() + seconds_max
    with ClusterClient(bootstrap) as client:
        while True:
            try:
                client.metadata([])
                return
            except ClusterAnswerError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.05)


def refusal(code: int, message: str | None) -> str:
    """An error of an answer in words."""
    try:
        name = ErrorCode(code).name
    except ValueError:
        name = f"error {code}"
    return f"{message.strip().rstrip('.')} ({name})" if message else name


def _address(text: str) -> Address:
    try:
        return host_and_port(text.strip())
    except ValueError as problem:
        raise ClusterAnswerError(f"{text} {problem}") from None


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
