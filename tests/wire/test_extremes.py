"""Every field of every request at its extremes: the node answers, and what it says of it is no defect.

A request that an exchange of each API sends is taken apart, and one field after another gets the smallest and largest
number it can hold, the empty and the longest string, null where that is allowed. Each is well-formed, so the connection
stays open and an answer comes, unless the request is one that waits.
"""

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from anabranch.broker.handlers import HANDLERS
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.codec import _message as message_of
from anabranch.wire.codec import decode_request
from anabranch.wire.header import parse_request_header
from anabranch.wire.table import NO_DEFAULT, Field, default_of
from support.exchanges import EXCHANGES, World, make_world
from support.raw_client import ClosedByBroker, RawClient
from support.wire_node import WireNode

Path = tuple[str | int, ...]

STRING_BYTES_MAX = 2**15 - 1
WAITING = {ApiKey.FETCH, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.PRODUCE}
"""What may wait for something else to happen."""
WAIT_SECONDS = 0.03

SETTINGS = {
    "auto.create.topics.enable": "false",
    "group.min.session.timeout.ms": "1000",
    "group.initial.rebalance.delay.ms": "0",
    "num.partitions": "2",
}


class RecordingClient(RawClient):
    """Remembers the last request of an API that it sent."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap)
        self.requests: dict[tuple[int, int], dict[str, Any]] = {}

    def send_frame(self, frame: bytes) -> None:
        header, body = parse_request_header(frame, 0, len(frame))
        decoded = decode_request(header.api_key, header.api_version, frame, body, len(frame))
        self.requests.setdefault((header.api_key, header.api_version), decoded)
        super().send_frame(frame)


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WireNode]:
    with WireNode(tmp_path_factory.mktemp("extremes"), SETTINGS) as running:
        yield running


@pytest.fixture
def world(tried: WireNode) -> World:
    with RawClient(tried.bootstrap) as client:
        return make_world(client)


def extremes(field: Field, version: int) -> Iterator[Any]:
    """What one value of this type may be at most, and at least."""
    match field.element_type:
        case "int8" | "int16" | "int32" | "int64" as kind:
            bits = int(kind[3:])
            yield from (-(2 ** (bits - 1)), -1, 0, 2 ** (bits - 1) - 1)
        case "uint16":
            yield from (0, 2**16 - 1)
        case "float64":
            yield from (0.0, -1e308, 1e308)
        case "string":
            yield from ("", "x" * STRING_BYTES_MAX)
        case "bytes":
            yield from (b"", b"\xff" * 100)
    if field.is_nullable_in(version):
        yield None


def variants(
    fields: tuple[Field, ...], version: int, body: dict[str, Any], path: Path = ()
) -> Iterator[tuple[Path, Any]]:
    """Which field to change, and into what."""
    for field in fields:
        here: Path = (*path, field.name)
        if not field.exists_in(version) or field.type == "records":
            continue
        if field.is_array:
            yield from _variants_of_array(field, version, body[field.name], here)
        elif field.type != "struct":
            yield from ((here, each) for each in extremes(field, version))
        elif isinstance(body[field.name], dict):
            yield from variants(field.fields, version, body[field.name], here)


def _variants_of_array(
    field: Field, version: int, elements: list[Any] | None, path: Path
) -> Iterator[tuple[Path, Any]]:
    yield path, []
    if field.is_nullable_in(version):
        yield path, None
    if not elements:
        return
    first: Path = (*path, 0)
    if field.element_type == "struct":
        yield from variants(field.fields, version, elements[0], first)
    else:
        yield from ((first, each) for each in extremes(field, version) if each is not None)


def filled(fields: tuple[Field, ...], version: int, body: dict[str, Any]) -> dict[str, Any]:
    """With one element of defaults in every array that was empty, and in every struct that was null."""
    full = dict(body)
    for field in fields:
        if not field.exists_in(version) or field.type == "records":
            continue
        inside = full.get(field.name)
        if field.is_array:
            first = inside[0] if inside else element_of(field)
            full[field.name] = [
                filled(field.fields, version, first) if isinstance(first, dict) else first,
                *(inside or ())[1:],
            ]
        elif field.type == "struct":
            full[field.name] = filled(field.fields, version, inside or element_of(field))
    return full


def element_of(field: Field) -> Any:
    kind = field.element_type
    if kind == "struct":
        return {inner.name: default_of(inner) for inner in field.fields}
    return default_of(field._replace(type=kind, default=NO_DEFAULT))


def changed(body: dict[str, Any], path: Path, value: Any) -> dict[str, Any]:
    copied = copy.deepcopy(body)
    inside: Any = copied
    for step in path[:-1]:
        inside = inside[step]
    inside[path[-1]] = value
    return copied


def without_views(value: Any) -> Any:
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, dict):
        return {key: without_views(each) for key, each in value.items()}
    return [without_views(each) for each in value] if isinstance(value, list) else value


def good_request(node: WireNode, world: World, key: ApiKey, version: int) -> dict[str, Any]:
    with RecordingClient(node.bootstrap) as client:
        EXCHANGES[key][0](client, version, world)
        request: dict[str, Any] = without_views(client.requests[key, version])
    return request


class Asking:
    """One connection at a time: a new one after each that waits."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self.client = RawClient(bootstrap)

    def __enter__(self) -> "Asking":
        return self

    def __exit__(self, *_: object) -> None:
        self.client.sock.close()

    def is_answered(self, key: ApiKey, version: int, body: dict[str, Any]) -> bool:
        """Whether there was an answer, or none is due yet; False: the connection was closed."""
        waits = key in WAITING
        if waits:
            self.client.sock.settimeout(WAIT_SECONDS)
        try:
            self.client.ask(key, version, body)
        except TimeoutError:
            if not waits:
                raise
            self._renew()
        except ClosedByBroker:
            self._renew()
            return False
        return True

    def _renew(self) -> None:
        self.client.sock.close()
        self.client = RawClient(self._bootstrap)


def is_meant_to_close(key: ApiKey, path: Path, value: Any) -> bool:
    """Without acks there is no answer that could tell of an error."""
    return key == ApiKey.PRODUCE and path == ("acks",) and value == 0


@pytest.mark.parametrize("key", HANDLERS, ids=lambda key: key.name)
def test_every_field_may_have_any_value_of_its_type(tried: WireNode, world: World, key: ApiKey) -> None:
    log_position = tried.log_size()
    closed = []
    with Asking(tried.bootstrap) as asking:
        for version in HANDLERS[key].versions:
            body = good_request(tried, world, key, version)
            fields = message_of(key, 0).fields
            for request in (body, filled(fields, version, body)):
                for path, value in variants(fields, version, request):
                    if is_meant_to_close(key, path, value):
                        continue
                    if not asking.is_answered(key, version, changed(request, path, value)):
                        closed.append((version, path, value[:5] if isinstance(value, str) else value))
    assert closed == []
    assert tried.is_alive()
    assert tried.defects_since(log_position) == []


def test_the_node_starts_again_after_all_of_them(tried: WireNode) -> None:
    """What was accepted can also be read back."""
    log_position = tried.log_size()
    tried.stop()
    tried.start()
    tried.check_served()
    assert tried.defects_since(log_position) == []
