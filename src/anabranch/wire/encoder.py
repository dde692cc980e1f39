"""From a table and a version to the source of `encode(m, out)`, which appends a message to a bytearray.

A missing key takes the field's default, and keys of other versions are left out, so a handler fills in what
it knows and need not ask for the version; a key that no version has is a slip of ours and is refused. A
tagged field is written only when it differs from its default.
"""

from anabranch.wire.primitives import NO_UUID
from anabranch.wire.source import Source
from anabranch.wire.table import FIXED_FORMATS, Field, Message, default_of

END_OF_TAGS = "x"
"""The empty tagged section is one zero byte, which `struct` writes for an `x`."""


def encoder(message: Message, version: int) -> Source:
    source = Source(message, version, "def encode(m, out):")
    _struct(source, 1, message.fields, "", "m", "out")
    source.line(1, "return out", "(end)")
    return source


def _struct(source: Source, depth: int, fields: tuple[Field, ...], path: str, m: str, out: str) -> None:
    known = source.constant("known", frozenset(field.name for field in fields))
    source.line(depth, f"assert {m}.keys() <= {known}, sorted({m}.keys() - {known})", path + "(keys)")
    run: list[Field] = []
    for field in source.untagged(fields):
        if field.type in FIXED_FORMATS:
            run.append(field)
            continue
        _fixed_run(source, depth, run, path, m, out)
        run = []
        _value(source, depth, field, path + field.name, _get(field, m), out)
    tagged = source.tagged(fields) if source.flexible else []
    _fixed_run(source, depth, run, path, m, out, END_OF_TAGS if source.flexible and not tagged else "")
    if tagged:
        _tags(source, depth, tagged, path, m, out)


def _default(field: Field) -> str:
    default = default_of(field)
    if default == NO_UUID:
        return "NO_UUID"
    return "()" if default == [] else repr(default)


def _get(field: Field, m: str) -> str:
    """The value to write; a missing struct is an empty dict, whose own fields then take their defaults."""
    default = "{}" if field.type == "struct" and default_of(field) is not None else _default(field)
    return f"{m}.get({field.name!r}, {default})"


def _fixed_run(
    source: Source, depth: int, run: list[Field], path: str, m: str, out: str, ending: str = ""
) -> None:
    if not run and not ending:
        return
    layout = source.fixed("".join(FIXED_FORMATS[field.type] for field in run) + ending)
    pack = source.constant("pack", layout.pack)
    values = [_get(field, m) + (".bytes" if field.type == "uuid" else "") for field in run]
    where = path + (", ".join(field.name for field in run) or "(tags)")
    source.line(depth, f"{out} += {pack}({', '.join(values)})", where)


def _value(source: Source, depth: int, field: Field, path: str, value: str, out: str) -> None:
    if field.is_array:
        _array(source, depth, field, path, value, out)
    elif field.type == "struct":
        _maybe_struct(source, depth, field, path, value, out)
    else:
        nullable = "nullable_" if source.is_nullable(field) else ""
        source.line(depth, f"write_{source.compact}{nullable}{_wire_type(field)}({out}, {value})", path)


def _wire_type(field: Field) -> str:
    return "bytes" if field.element_type == "records" else field.element_type


def _maybe_struct(source: Source, depth: int, field: Field, path: str, value: str, out: str) -> None:
    inner = source.name("m")
    source.line(depth, f"{inner} = {value}", path)
    if source.is_nullable(field):
        source.line(depth, f"if {inner} is None:", path)
        source.line(depth + 1, f"{out}.append(255)", path)
        source.line(depth, "else:", path)
        depth += 1
        source.line(depth, f"{out}.append(1)", path)
    _struct(source, depth, field.fields, path + ".", inner, out)


def _array(source: Source, depth: int, field: Field, path: str, value: str, out: str) -> None:
    items = source.name("items")
    source.line(depth, f"{items} = {value}", path)
    if source.is_nullable(field):
        source.line(depth, f"if {items} is None:", path)
        null = "append(0)" if source.flexible else 'extend(b"\\xff\\xff\\xff\\xff")'
        source.line(depth + 1, f"{out}.{null}", path)
        source.line(depth, "else:", path)
        depth += 1
    source.line(depth, f"write_{source.compact}count({out}, len({items}))", path)
    _elements(source, depth, field, path, items, out)


def _elements(source: Source, depth: int, field: Field, path: str, items: str, out: str) -> None:
    kind = field.element_type
    if kind in FIXED_FORMATS and kind != "uuid":
        source.line(depth, f"write_numbers({out}, {items}, {FIXED_FORMATS[kind]!r})", path)
        return
    item = source.name("item")
    source.line(depth, f"for {item} in {items}:", path)
    if kind == "struct":
        _struct(source, depth + 1, field.fields, path + ".", item, out)
    elif kind == "uuid":
        source.line(depth + 1, f"{out} += {item}.bytes", path)
    else:
        source.line(depth + 1, f"write_{source.compact}{_wire_type(field)}({out}, {item})", path)


def _tags(source: Source, depth: int, tagged: list[Field], path: str, m: str, out: str) -> None:
    """Each value goes into a buffer of its own, because its size is written first."""
    buffers = [source.name("tag") for _ in tagged]
    for field, buffer in zip(tagged, buffers, strict=True):
        source.line(depth, f"{buffer} = None", path)
        source.line(depth, f"if {_differs(field, m)}:", path + field.name)
        source.line(depth + 1, f"{buffer} = bytearray()", path + field.name)
        if field.type in FIXED_FORMATS:
            _fixed_run(source, depth + 1, [field], path, m, buffer)
        else:
            _value(source, depth + 1, field, path + field.name, _get(field, m), buffer)
    present = " + ".join(f"({buffer} is not None)" for buffer in buffers)
    source.line(depth, f"write_uvarint({out}, {present})", path + "(tags)")
    for field, buffer in zip(tagged, buffers, strict=True):
        source.line(
            depth, f"if {buffer} is not None: write_tag({out}, {field.tag}, {buffer})", path + field.name
        )


def _differs(field: Field, m: str) -> str:
    """An expression: is the value another than the default?"""
    if field.is_array and default_of(field) == []:
        return f"len({_get(field, m)})"
    if field.type == "struct" and default_of(field) is not None:
        return " or ".join(_differs(inner, _get(field, m)) for inner in field.fields)
    return f"{_get(field, m)} != {_default(field)}"
