"""From a table and a version to the source of `decode(b, p, left) -> (message, position)`.

Fields become local variables, read straight in a row, and each struct one dict display at its end. Neighbours
of fixed width are read with one `unpack_from`. A field that the version does not have gets its default, so
that whoever reads the message need not ask for the version first. `left` is how many array elements and tagged fields
the message may have.
"""

from anabranch.wire.primitives import NO_UUID
from anabranch.wire.source import Source
from anabranch.wire.table import FIXED_FORMATS, Field, Message, bytes_min, default_of


def decoder(message: Message, version: int) -> Source:
    source = Source(message, version, "def decode(b, p, left):")
    result = _struct(source, 1, message.fields, "")
    source.line(1, f"return {result}, p", "(end)")
    return source


def _struct(source: Source, depth: int, fields: tuple[Field, ...], path: str) -> str:
    """Emit the reading of one struct; the answer is the expression that builds it."""
    values = {field.name: _default(field) for field in fields if not field.exists_in(source.version)}
    run: list[Field] = []
    for field in source.untagged(fields):
        if field.type in FIXED_FORMATS:
            run.append(field)
            continue
        _fixed_run(source, depth, run, path, values)
        run = []
        values[field.name] = _value(source, depth, field, path + field.name)
    _fixed_run(source, depth, run, path, values)
    if source.flexible:
        _tags(source, depth, fields, path, values)
    return "{" + ", ".join(f"{field.name!r}: {values[field.name]}" for field in fields) + "}"


def _default(field: Field) -> str:
    return _literal(default_of(field))


def _literal(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name!r}: {_literal(inner)}" for name, inner in value.items()) + "}"
    return "NO_UUID" if value == NO_UUID else repr(value)


def _fixed_run(source: Source, depth: int, run: list[Field], path: str, values: dict[str, str]) -> None:
    if not run:
        return
    layout = source.fixed("".join(FIXED_FORMATS[field.type] for field in run))
    unpack = source.constant("unpack", layout.unpack_from)
    names = [source.name() for _ in run]
    where = path + ", ".join(field.name for field in run)
    source.line(depth, f"{', '.join(names)}, = {unpack}(b, p); p += {layout.size}", where)
    for field, name in zip(run, names, strict=True):
        values[field.name] = f"uuid_of({name})" if field.type == "uuid" else name


def _value(source: Source, depth: int, field: Field, path: str) -> str:
    """Emit the reading of one field; the answer is the variable that holds it."""
    name = source.name()
    if field.is_array:
        _array(source, depth, field, path, name)
    elif field.type == "struct":
        _maybe_struct(source, depth, field, path, name)
    else:
        source.line(depth, f"{name}, p = {_reader(source, field)}(b, p)", path)
    return name


def _reader(source: Source, field: Field) -> str:
    kind = field.element_type
    nullable = "nullable_" if source.is_nullable(field) and not field.is_array and kind != "records" else ""
    return f"read_{source.compact}{nullable}{kind}"


def _maybe_struct(source: Source, depth: int, field: Field, path: str, name: str) -> None:
    if not source.is_nullable(field):
        source.line(depth, f"{name} = {_struct(source, depth, field.fields, path + '.')}", path)
        return
    source.line(depth, f"{name}, p = read_presence(b, p)", path)
    source.line(depth, f"if not {name}:", path)
    source.line(depth + 1, f"{name} = None", path)
    source.line(depth, "else:", path)
    source.line(depth + 1, f"{name} = {_struct(source, depth + 1, field.fields, path + '.')}", path)


def _array(source: Source, depth: int, field: Field, path: str, name: str) -> None:
    nullable = "nullable_" if source.is_nullable(field) else ""
    smallest = bytes_min(field, source.version, source.flexible)
    source.line(depth, f"n, p = read_{source.compact}{nullable}count(b, p, {smallest})", path)
    if nullable:
        source.line(depth, "if n < 0:", path)
        source.line(depth + 1, f"{name} = None", path)
        source.line(depth, "else:", path)
        depth += 1
    source.line(depth, "left -= n", path)
    source.line(depth, "if left < 0: too_many_elements()", path)
    _elements(source, depth, field, path, name)


def _elements(source: Source, depth: int, field: Field, path: str, name: str) -> None:
    kind = field.element_type
    if kind in FIXED_FORMATS and kind != "uuid":
        source.line(depth, f"{name}, p = read_numbers(b, p, n, {FIXED_FORMATS[kind]!r})", path)
        return
    source.line(depth, f"{name} = []", path)
    source.line(depth, "for _ in range(n):", path)
    if kind == "struct":
        element = _struct(source, depth + 1, field.fields, path + ".")
    else:
        element = "element"
        reader = "read_uuid" if kind == "uuid" else _reader(source, field)
        source.line(depth + 1, f"{element}, p = {reader}(b, p)", path)
    source.line(depth + 1, f"{name}.append({element})", path)


def _tags(source: Source, depth: int, fields: tuple[Field, ...], path: str, values: dict[str, str]) -> None:
    known = source.tagged(fields)
    if not known:
        source.line(depth, "if b[p]: p, left = skip_tags(b, p, left)", path + "(tags)")
        source.line(depth, "else: p += 1", path + "(tags)")
        return
    for field in known:
        values[field.name] = source.name()
        source.line(depth, f"{values[field.name]} = {_default(field)}", path)
    count, end = source.name("tags"), source.name("end")
    source.line(depth, f"{count}, p = read_uvarint(b, p)", path + "(tags)")
    source.line(depth, f"left -= {count}", path + "(tags)")
    source.line(depth, "if left < 0: too_many_elements()", path + "(tags)")
    source.line(depth, f"for _ in range({count}):", path + "(tags)")
    source.line(depth + 1, f"tag, p, {end} = read_tag(b, p)", path + "(tags)")
    for branch, field in enumerate(known):
        where = path + field.name
        source.line(depth + 1, f"{'elif' if branch else 'if'} tag == {field.tag}:", where)
        _tag_value(source, depth + 2, field, path, values[field.name])
        source.line(depth + 2, f"check_tag_end(p, {end})", where)
    source.line(depth + 1, f"p = {end}", path + "(tags)")


def _tag_value(source: Source, depth: int, field: Field, path: str, name: str) -> None:
    found: dict[str, str] = {}
    if field.type in FIXED_FORMATS:
        _fixed_run(source, depth, [field], path, found)
    else:
        found[field.name] = _value(source, depth, field, path + field.name)
    source.line(depth, f"{name} = {found[field.name]}", path + field.name)
