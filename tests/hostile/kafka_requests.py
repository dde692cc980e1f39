"""The worst requests of every Kafka API that fit into a frame, built from the tables of the protocol.

For each API, in one version of each range whose requests look alike, and for each array of its request: as many
elements as the node reads, all distinct or all the same, and more than it reads. Also the most tagged fields and the
longest strings. What a table cannot know (compression, sessions, members) is in `special_requests.py`.

Nothing here destroys what the node keeps: topics are only validated, and what is deleted is not there.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple
from uuid import UUID

from anabranch.broker.handlers import HANDLERS
from anabranch.wire.api_keys import FLEXIBLE_SINCE, ApiKey
from anabranch.wire.codec import _message, encode_message
from anabranch.wire.header import request_header
from anabranch.wire.table import Field, Message, default_of

STRING_BYTES_MAX = 32_000
BAD_NAME = "no such name!"


class Sizes(NamedTuple):
    read: int = 19_000
    """Elements that the node still reads (`request.elements.max` is 20,000)."""
    beyond: int = 240_000
    """Elements that it refuses to read; what was allowed once."""
    tags_beyond: int = 7_000_000
    frame_bytes: int = 15 * 2**20
    """Just below `request.control.bytes.max`."""


class Hostile(NamedTuple):
    api: ApiKey
    version: int
    kind: str
    frame: bytes

    @property
    def name(self) -> str:
        return f"{self.api.name} v{self.version}, {self.kind}"


class World(NamedTuple):
    """What is there to be asked for."""

    topic: str
    topic_id: UUID
    partitions: int
    group: str
    packed_topic: str = ""
    """Small batches that unpack to many megabytes."""
    empty_topic: str = ""


def worst_requests(
    world: World, apis: list[ApiKey] | None = None, sizes: Sizes | None = None
) -> Iterator[Hostile]:
    sizes = sizes or Sizes()
    for api_key in apis or list(HANDLERS):
        for version in distinct_versions(api_key):
            yield from _of_version(world, api_key, version, sizes)


def distinct_versions(api_key: ApiKey) -> list[int]:
    """The last version of each range in which requests have the same fields and the same encoding."""
    fields, flexible_since = _message(api_key, 0).fields, FLEXIBLE_SINCE[api_key]
    last = {
        (version >= flexible_since, _shape(fields, version)): version
        for version in HANDLERS[api_key].versions
    }
    return list(last.values())


def _shape(fields: tuple[Field, ...], version: int) -> tuple[Any, ...]:
    return tuple((field.name, _shape(field.fields, version)) for field in fields if field.exists_in(version))


def _of_version(world: World, api_key: ApiKey, version: int, sizes: Sizes) -> Iterator[Hostile]:
    message = _message(api_key, 0)
    builder = _Builder(world, api_key, version)
    plain = builder.frame(message)
    yield Hostile(api_key, version, "plain", plain)
    for path in _arrays(message.fields, version):
        where = ".".join(path)
        fitting = sizes.read // (1 + _arrays_within(message.fields, version, path))
        for kind, count, is_distinct in (
            ("distinct", fitting, True),
            ("the same", fitting, False),
            ("beyond the limit", sizes.beyond, True),
        ):
            frame = builder.frame(message, path, count, is_distinct=is_distinct)
            if len(frame) <= sizes.frame_bytes:
                yield Hostile(api_key, version, f"{count} {where}, {kind}", frame)
    long = _Builder(world, api_key, version, string="x" * STRING_BYTES_MAX)
    for path in _arrays(message.fields, version):
        one = len(long.frame(message, path, 2)) - len(long.frame(message, path, 1))
        count = sizes.frame_bytes // max(one, 1000)
        if one > STRING_BYTES_MAX // 2:
            frame = long.frame(message, path, count)
            yield Hostile(api_key, version, f"{count} {'.'.join(path)} with the longest strings", frame)
    if version >= FLEXIBLE_SINCE[api_key]:
        for count in (sizes.read, sizes.tags_beyond):
            tags = _uvarint(count) + b"\x7f\0" * count
            yield Hostile(api_key, version, f"{count} tagged fields", plain[:-1] + tags)


def _arrays(fields: tuple[Field, ...], version: int, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Where a request of this version has arrays, nested ones included."""
    for field in fields:
        if not field.exists_in(version) or field.tag is not None:
            continue
        if field.is_array:
            yield (*path, field.name)
        if field.fields:
            yield from _arrays(field.fields, version, (*path, field.name))


def _arrays_within(fields: tuple[Field, ...], version: int, path: tuple[str, ...]) -> int:
    """How many arrays each element of the one at `path` has, and therefore further elements."""
    (field,) = (each for each in fields if each.name == path[0])
    if len(path) > 1:
        return _arrays_within(field.fields, version, path[1:])
    return sum(1 for _ in _arrays(field.fields, version))


class _Builder:
    def __init__(self, world: World, api_key: ApiKey, version: int, string: str | None = None) -> None:
        self._world = world
        self._api_key = api_key
        self._version = version
        self._string = string

    def frame(
        self, message: Message, stretched: tuple[str, ...] = (), count: int = 1, *, is_distinct: bool = True
    ) -> bytes:
        """One request; the array at `stretched` has `count` elements, every other one."""
        body = self._struct(message.fields, stretched, count, 0 if is_distinct else None)
        header = request_header(self._api_key, self._version, 7, "hostile")
        return header + bytes(encode_message(message, self._version, body))

    def _struct(
        self, fields: tuple[Field, ...], stretched: tuple[str, ...], count: int, number: int | None
    ) -> dict[str, Any]:
        return {
            field.name: self._value(field, stretched, count, number)
            for field in fields
            if field.exists_in(self._version) and field.tag is None
        }

    def _value(self, field: Field, stretched: tuple[str, ...], count: int, number: int | None) -> Any:
        is_meant = bool(stretched) and stretched[0] == field.name
        inner = stretched[1:] if is_meant else ()
        if not field.is_array:
            if field.type == "struct":
                return self._struct(field.fields, inner, count, number)
            return self._plain(field, field.type, number)
        elements = count if is_meant and not inner else 1
        if field.element_type == "struct":
            if elements == 1:
                return [self._struct(field.fields, inner, count, number)]
            return self._many(field, elements, number)
        return [
            self._plain(field, field.element_type, None if number is None else each)
            for each in range(elements)
        ]

    def _many(self, field: Field, elements: int, number: int | None) -> list[dict[str, Any]]:
        """One element and copies of it, in which only what tells it apart differs."""
        first = self._struct(field.fields, (), 1, 0 if number is not None else None)
        if number is None:
            return [first] * elements
        own = [each for each in field.fields if each.name in first and _tells_apart(each)]
        return [
            {**first, **{each.name: self._plain(each, each.type, which) for each in own}}
            for which in range(elements)
        ]

    def _plain(self, field: Field, kind: str, number: int | None) -> Any:
        if field.name in FIXED:
            return FIXED[field.name]
        if kind == "string":
            return self._text(field.name, number)
        if kind == "uuid":
            return self._world.topic_id if number is None else UUID(int=number + 1)
        if kind in ("int16", "int32", "int64") and _is_partition(field.name):
            return 0 if number is None else number
        if kind in ("bytes", "records"):
            return b""
        default = default_of(field._replace(type=kind))
        return {"int": 0, "str": ""}.get(kind[:3]) if default is None else default

    def _text(self, name: str, number: int | None) -> str:
        if self._string is not None:
            return self._string if number is None else f"{number}{self._string}"[:STRING_BYTES_MAX]
        if number is None and self._api_key not in DESTRUCTIVE:
            return self._world.group if "group" in name else self._world.topic
        return f"{BAD_NAME}{number}"


FIXED: dict[str, Any] = {
    "validate_only": True,
    "max_wait_ms": 0,
    "timeout_ms": 1000,
    "session_timeout_ms": 10_000,
    "rebalance_timeout_ms": 1000,
    "broker_id": 99,
    "session_epoch": -1,
    "partition_max_bytes": 1000,
    "max_bytes": 2**20,
    "acks": 1,
    "resource_type": 2,
    "offset": 0,
    "allow_auto_topic_creation": False,
    "response_partition_limit": 2000,
    "timestamp": -1,
    "count": 100_000,
    "num_partitions": 1,
    "replication_factor": 1,
}
"""Fields whose default would keep a request from doing any work, or have it do harm."""

DESTRUCTIVE = {
    ApiKey.DELETE_TOPICS,
    ApiKey.DELETE_GROUPS,
    ApiKey.DELETE_RECORDS,
    ApiKey.ALTER_CONFIGS,
    ApiKey.INCREMENTAL_ALTER_CONFIGS,
    ApiKey.CREATE_PARTITIONS,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS,
}


def _tells_apart(field: Field) -> bool:
    return field.type in ("string", "uuid") or _is_partition(field.name)


def _is_partition(name: str) -> bool:
    return "partition" in name or name == "index"


def _uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
