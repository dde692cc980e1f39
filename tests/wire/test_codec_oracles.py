"""Every table in every version against two independent implementations of Kafka's protocol, with populated
values.

Our bytes must mean the same to the oracle, field by field, and what the oracle writes from that must mean
the same to us. Fields are compared in the order of the table, since the oracles spell some names
differently.
"""

import importlib
import io
import pkgutil
from collections.abc import Iterator
from dataclasses import fields as dataclass_fields
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import kafka.protocol
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from kafka.protocol.api_message import ApiMessage
from kio.index import load_entity_schema
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

import wire_messages
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.codec import decode_message, encode_message
from anabranch.wire.table import Field, Message

MISSING_FROM_ORACLES: dict[tuple[str, str, int], str] = {
    ("kafka-python", "UnregisterBrokerRequest", 0): "its admin client cannot unregister a broker",
    ("kafka-python", "UnregisterBrokerResponse", 0): "its admin client cannot unregister a broker",
    **{
        ("kafka-python", f"{api}{kind}", version): "its consumer knows classic groups alone"
        for api, versions in (("ConsumerGroupHeartbeat", (0, 1)), ("ShareGroupHeartbeat", (1,)))
        for kind in ("Request", "Response")
        for version in versions
    },
}
"""(oracle, message, version) that the oracle does not have, and why: nothing is left out without a line
here."""

NO_UUID = UUID(int=0)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)

few = settings(
    max_examples=6,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)


class Kio:
    name = "kio"

    def __init__(self, key: int | None, direction: str, message: Message, version: int) -> None:
        name = _snake(message.name) if key is None else ApiKey(key).name.lower()
        self.entity = load_entity_schema(name, version, EntityType[direction])

    def decode(self, data: bytes) -> object:
        value, size = entity_reader(self.entity)(data, 0)
        assert size == len(data)
        return value

    def encode(self, value: Any) -> bytes:
        out = io.BytesIO()
        entity_writer(self.entity)(out, value)
        return out.getvalue()

    @staticmethod
    def fields_of(value: Any, version: int) -> list[tuple[str, object]]:
        return [(field.name, getattr(value, field.name)) for field in dataclass_fields(value)]


class KafkaPython:
    name = "kafka-python"

    def __init__(self, key: int | None, direction: str, message: Message, version: int) -> None:
        self.message = KAFKA_PYTHON_CLASSES[message.name]
        self.version = version
        self.options = {"version": version, "header": False}
        if version > self.message.max_version:
            raise LookupError(version)

    def decode(self, data: bytes) -> object:
        if not issubclass(self.message, ApiMessage):
            return self.message.decode(data, **self.options)
        # Past the client's own ApiVersionsResponse.decode, which reads version 0 whenever there is an error.
        value = ApiMessage.decode.__func__(self.message, data, **self.options)
        value._header = None  # Its encoder asks for one even when none is wanted.
        return value

    def encode(self, value: Any) -> bytes:
        return bytes(value.encode(header=False))

    @staticmethod
    def fields_of(value: Any, version: int) -> list[tuple[str, object]]:
        present = [field for field in value._struct._fields if field.for_version_q(version)]
        return [(field.name, getattr(value, field.name)) for field in present]


def _kafka_python_classes() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for info in pkgutil.walk_packages(kafka.protocol.__path__, "kafka.protocol."):
        if ".old" in info.name or "generate_stubs" in info.name:
            continue
        for name, value in vars(importlib.import_module(info.name)).items():
            if isinstance(value, type) and name.endswith(
                ("Request", "Response", "Subscription", "Assignment")
            ):
                found[name] = value
    return found


KAFKA_PYTHON_CLASSES = _kafka_python_classes()
ORACLES = (Kio, KafkaPython)


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).removeprefix("_")


def _cases() -> Iterator[Any]:
    for key, direction, message in wire_messages.kafkas_messages():
        for version in wire_messages.versions(message):
            for oracle in ORACLES:
                identity = f"{oracle.name}-{message.name}-v{version}"
                if (oracle.name, message.name, version) not in MISSING_FROM_ORACLES:
                    yield pytest.param(oracle, key, direction, message, version, id=identity)


@pytest.mark.parametrize("populated", [True, False], ids=["populated", "sparse"])
@pytest.mark.parametrize(("oracle_type", "key", "direction", "message", "version"), list(_cases()))
def test_codec_and_oracle_read_each_other(
    oracle_type: Any, key: int | None, direction: str, message: Message, version: int, populated: bool
) -> None:
    oracle = oracle_type(key, direction, message, version)

    @few
    @given(wire_messages.bodies(message.fields, version, populated=populated))
    def check(body: dict[str, Any]) -> None:
        seen = oracle.decode(bytes(encode_message(message, version, body)))
        assert_same(oracle, message.fields, version, body, seen)
        theirs = oracle.encode(seen)
        decoded, end = decode_message(message, version, memoryview(theirs), 0)
        assert end == len(theirs)
        assert decoded == wire_messages.complete(message.fields, version, body)

    check()


def test_oracles_really_lack_what_the_table_of_gaps_says() -> None:
    for oracle_name, name, version in MISSING_FROM_ORACLES:
        (oracle,) = [oracle for oracle in ORACLES if oracle.name == oracle_name]
        (found,) = [found for found in wire_messages.kafkas_messages() if found[2].name == name]
        with pytest.raises((LookupError, RuntimeError)):
            oracle(*found, version)


def test_every_version_of_every_table_is_compared_with_at_least_one_oracle() -> None:
    compared = {(case.values[3].name, case.values[4]) for case in _cases()}
    tables = [message for _, _, message in wire_messages.kafkas_messages()]
    assert compared == {(each.name, version) for each in tables for version in wire_messages.versions(each)}
    assert len(tables) == 82


def assert_same(oracle: Any, fields: tuple[Field, ...], version: int, ours: Any, theirs: Any) -> None:
    present = [field for field in fields if field.exists_in(version)]
    others = oracle.fields_of(theirs, version)
    assert len(present) == len(others), (present, others)
    for field, (name, other) in zip(present, others, strict=True):
        assert _letters(name) in _letters(field.name) or field.name == name, (field.name, name)
        assert_same_value(oracle, field, version, ours[field.name], other)


def _letters(name: str) -> str:
    return name.replace("_", "").lower()


def assert_same_value(oracle: Any, field: Field, version: int, ours: Any, theirs: Any) -> None:
    if field.element_type != "struct" or ours is None or theirs is None:
        assert plain(theirs, field) == ours, field.name
    elif field.is_array:
        assert len(ours) == len(theirs), field.name
        for our_element, their_element in zip(ours, theirs, strict=True):
            assert_same(oracle, field.fields, version, our_element, their_element)
    else:
        assert_same(oracle, field.fields, version, ours, theirs)


def plain(value: Any, field: Field) -> object:
    """An oracle's value as we would say it."""
    if value is None:
        return NULLS.get(field.name, NULLS.get(field.type))
    if field.is_array:
        return [plain_element(element, field.element_type) for element in value]
    return plain_element(value, field.type)


NULLS = {
    "uuid": NO_UUID,
    "log_append_time_ms": -1,
    "authorized_operations": -(2**31),
    "topic_authorized_operations": -(2**31),
    "cluster_authorized_operations": -(2**31),
}
"""What an oracle gives as None although it is a number on the wire."""


def plain_element(value: Any, kind: str) -> object:
    if kind == "uuid":
        return value or NO_UUID
    if isinstance(value, datetime):
        return (value - EPOCH) // MILLISECOND
    if isinstance(value, timedelta):
        return value // MILLISECOND
    if isinstance(value, set):  # kafka-python's bit fields
        unsigned = sum(1 << bit for bit in value)
        return unsigned - 2**32 if unsigned >= 2**31 else unsigned
    if isinstance(value, memoryview):
        return bytes(value)
    return int(value) if kind.startswith("int") else value
