"""The words a schema is written in: `Message` and `Field`, and what they say about one version.

Version ranges are written as Kafka writes them: `"3+"`, `"0-9"`, `"4"`, `"none"`. Types are `bool int8 int16
uint16 int32 int64 float64 uuid string bytes records struct`, each also as an array with `[]` in front.
A field with a `tag` is a tagged field in every version it exists in.
"""

from typing import NamedTuple
from uuid import UUID

VERSION_MAX = 32767

NO_DEFAULT = object()
"""The field takes the default of its type: zero, empty, or for `records` null."""

FIXED_FORMATS = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
"""Types of fixed width, as letters of `struct`."""

FIXED_BYTES = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "int64": 8,
    "float64": 8,
    "uuid": 16,
}

TYPE_DEFAULTS: dict[str, object] = {
    "bool": False,
    "uuid": UUID(int=0),
    "float64": 0.0,
    "string": "",
    "bytes": b"",
    "records": None,
}


class Field(NamedTuple):
    """One line of a table; `fields` are those of a struct, or of the structs in an array."""

    name: str
    type: str
    versions: str
    nullable: str = "none"
    tag: int | None = None
    default: object = NO_DEFAULT
    fields: tuple["Field", ...] = ()

    def exists_in(self, version: int) -> bool:
        return in_range(self.versions, version)

    def is_nullable_in(self, version: int) -> bool:
        return self.type == "records" or in_range(self.nullable, version)

    @property
    def is_array(self) -> bool:
        return self.type.startswith("[]")

    @property
    def element_type(self) -> str:
        return self.type.removeprefix("[]")


class Message(NamedTuple):
    """One request, response or piece of embedded data: which versions it has, which of them are flexible."""

    name: str
    versions: str
    flexible: str
    fields: tuple[Field, ...]

    def is_flexible_in(self, version: int) -> bool:
        return in_range(self.flexible, version)


def bounds(versions: str) -> tuple[int, int]:
    """The first and last version of a range; an empty range ends before it begins."""
    if versions == "none":
        return 0, -1
    if versions.endswith("+"):
        return int(versions[:-1]), VERSION_MAX
    first, _, last = versions.partition("-")
    return int(first), int(last or first)


def in_range(versions: str, version: int) -> bool:
    first, last = bounds(versions)
    return first <= version <= last


def default_of(field: Field) -> object:
    """What the field means when it is absent: a literal, `[]` for arrays, a dict for structs."""
    if field.default is not NO_DEFAULT:
        return field.default
    if field.is_array:
        return []
    if field.type == "struct":
        return {inner.name: default_of(inner) for inner in field.fields}
    return TYPE_DEFAULTS.get(field.type, 0)


def bytes_min(field: Field, version: int, flexible: bool) -> int:
    """The fewest bytes one element of this field can take: what a claimed array length is checked against."""
    kind = field.element_type
    if kind in FIXED_BYTES:
        return FIXED_BYTES[kind]
    if kind == "struct":
        return struct_bytes_min(field.fields, version, flexible)
    length_bytes = 2 if kind == "string" else 4
    return 1 if flexible else length_bytes


def struct_bytes_min(fields: tuple[Field, ...], version: int, flexible: bool) -> int:
    total = int(flexible)
    for field in fields:
        if field.exists_in(version) and field.tag is None:
            total += field_bytes_min(field, version, flexible)
    return max(total, 1)


def field_bytes_min(field: Field, version: int, flexible: bool) -> int:
    if field.is_array:
        return 1 if flexible else 4
    if field.type == "struct" and field.is_nullable_in(version):
        return 1
    return bytes_min(field, version, flexible)
