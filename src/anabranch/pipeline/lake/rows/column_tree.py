"""The columns of a table as a tree, grown by the records that are read: the slow way of `parse.py`.

`take` costs what the record costs, however wide the table is: names are looked up, and a node is changed in place. It
is all or nothing: of a record that does not fit, nothing stays. A table may have `columns_max` columns, the fields
inside of objects counted; a record that asks for more does not fit. So one strange record can neither make a table
that nobody can open nor keep a task busy.

    Struct   an object: its fields by name, in their order
    Array    a list: what is in it
    Leaf     anything else: an Arrow type
"""

from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from anabranch.pipeline.lake.rows.infer import (
    MisfitError,
    check_name,
    infer_scalar,
    parse_time,
    shortened,
    widened_scalar,
)

COLUMNS_MAX = 1000
"""Unless the pipeline is told another limit (`columns_max`)."""


class Struct:
    __slots__ = ("fields", "folded")

    def __init__(self) -> None:
        self.fields: dict[str, Node] = {}
        self.folded: dict[str, str] = {}
        """Each name by its case-folded form: no two may share one."""


class Array:
    __slots__ = ("element",)

    def __init__(self, element: "Node") -> None:
        self.element = element


class Leaf:
    __slots__ = ("in_table", "kind")

    def __init__(self, kind: pa.DataType, in_table: bool) -> None:
        self.kind = kind
        self.in_table = in_table
        """Whether the table has it already: only what it has not may still go from long to double."""


Node = Struct | Array | Leaf


class ColumnTree:
    def __init__(
        self, fields: Iterable[pa.Field], *, widens: bool = True, columns_max: int = COLUMNS_MAX
    ) -> None:
        """`fields` are the table's. `widens`: can an int column become a long one?"""
        self._widens = widens
        self._columns_max = columns_max
        self._count = 0
        self._undo: list[Callable[[], None]] = []
        self.root = self._struct_of(fields)

    # --- from Arrow and back -------------------------------------------------------------------------------------

    def _struct_of(self, fields: Iterable[pa.Field]) -> Struct:
        struct = Struct()
        for field in fields:
            struct.fields[field.name] = self._node_of(field.type)
            struct.folded.setdefault(field.name.casefold(), field.name)
            self._count += 1
        return struct

    def _node_of(self, kind: pa.DataType) -> Node:
        if pa.types.is_struct(kind):
            return self._struct_of(kind.fields)
        if pa.types.is_list(kind):
            return Array(self._node_of(kind.value_type))
        return Leaf(kind, True)

    def fields(self) -> list[pa.Field]:
        return _arrow_fields(self.root)

    # --- growing -------------------------------------------------------------------------------------------------

    def take(self, values: dict[str, Any]) -> bool:
        """Make room for what the record holds; says whether anything changed. MisfitError: nothing has."""
        count = self._count
        self._undo.clear()
        try:
            self._take_struct(self.root, values, "")
        except MisfitError:
            for step in reversed(self._undo):
                step()
            self._count = count
            raise
        return bool(self._undo)

    def _take_struct(self, struct: Struct, values: dict[str, Any], path: str) -> None:
        fields = struct.fields
        for name, value in values.items():
            if value is None:
                continue
            where = f"{path}.{name}" if path else name
            before = fields.get(name)
            node = self._taken(before, value, where)
            if node is before or node is None:
                continue
            if before is None:
                self._check_new(struct, name, where)
                self._undo.append(lambda name=name: _drop(struct, name))  # type: ignore[misc]
                struct.folded[name.casefold()] = name
            else:
                self._undo.append(lambda name=name, before=before: fields.update({name: before}))  # type: ignore[misc]
            fields[name] = node

    def _check_new(self, struct: Struct, name: str, where: str) -> None:
        check_name(name, where, struct.folded)
        self._count += 1
        if self._count > self._columns_max:
            raise MisfitError(
                f"{shortened(where)} would give the table more than {self._columns_max} columns, fields of objects "
                "counted: raise the pipeline's columns_max if they are wanted"
            )

    def _taken(self, node: Node | None, value: Any, path: str) -> Node | None:
        """The node after this value came by; None: there is none yet, and the value says nothing about it."""
        if value is None:
            return node
        if node is None:
            return self._new(value, path)
        if isinstance(node, Struct) and isinstance(value, dict):
            self._take_struct(node, value, path)
            return node
        if isinstance(node, Array) and isinstance(value, list):
            self._take_items(node, value, f"{path}[]")
            return node
        return self._taken_leaf(node, value, path)

    def _take_items(self, array: Array, items: list[Any], path: str) -> None:
        for item in items:
            before = array.element
            node = self._taken(before, item, path)
            if node is not before and node is not None:
                self._undo.append(lambda before=before: setattr(array, "element", before))  # type: ignore[misc]
                array.element = node

    def _taken_leaf(self, node: Node, value: Any, path: str) -> Node:
        if not isinstance(node, Leaf):
            raise MisfitError(f"{path}: {shortened(value)} does not fit the column's type, {_word(node)}")
        kind = widened_scalar(node.kind, value, path, node.in_table)
        if kind is node.kind:
            return node
        if node.in_table and not self._widens:
            raise MisfitError(
                f"{path} has a number that does not fit its column, and the columns of this table cannot be widened"
            )
        return Leaf(kind, node.in_table)

    def _new(self, value: Any, path: str) -> Node | None:
        if isinstance(value, dict):
            struct = Struct()
            self._take_struct(struct, value, path)
            return struct if struct.fields else None
        if isinstance(value, list):
            inner: Node | None = None
            for item in value:
                inner = self._taken(inner, item, f"{path}[]")
            return None if inner is None else Array(inner)
        return Leaf(infer_scalar(value, path), False)


def _drop(struct: Struct, name: str) -> None:
    struct.fields.pop(name, None)
    struct.folded.pop(name.casefold(), None)


def _word(node: Node) -> str:
    return "an object" if isinstance(node, Struct) else "an array"


def _arrow_fields(struct: Struct) -> list[pa.Field]:
    return [pa.field(name, _arrow_type(node)) for name, node in struct.fields.items()]


def _arrow_type(node: Node) -> pa.DataType:
    if isinstance(node, Struct):
        return pa.struct(_arrow_fields(node))
    if isinstance(node, Array):
        return pa.list_(pa.field("element", _arrow_type(node.element)))
    return node.kind


# --- records that fit ---------------------------------------------------------------------------------------------


def check_known(struct: Struct, values: dict[str, Any], path: str = "") -> None:
    """Raises MisfitError for a field that is no column: for tables whose columns a JSON Schema gives."""
    for name, value in values.items():
        where = f"{path}.{name}" if path else name
        node = struct.fields.get(name)
        if node is None:
            raise MisfitError(f"{shortened(where, quoted=False)} is not in the JSON Schema")
        _check_known_inside(node, value, where)


def _check_known_inside(node: Node, value: Any, where: str) -> None:
    if isinstance(node, Struct) and isinstance(value, dict):
        check_known(node, value, where)
    elif isinstance(node, Array) and isinstance(value, list):
        for item in value:
            _check_known_inside(node.element, item, f"{where}[]")


def fitted_fields(struct: Struct, values: dict[str, Any]) -> dict[str, Any]:
    """The record in the form that Arrow wants for these columns, which it was found to fit."""
    fields = struct.fields
    return {name: _fitted(fields[name], value) for name, value in values.items() if name in fields}


def _fitted(node: Node, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(node, Struct):
        return fitted_fields(node, value)
    if isinstance(node, Array):
        return [_fitted(node.element, item) for item in value]
    if pa.types.is_floating(node.kind):
        return float(value)
    if pa.types.is_integer(node.kind):
        return int(value)
    if pa.types.is_timestamp(node.kind):
        moment = parse_time(value)
        assert moment is not None, "it was found to fit"
        return moment.as_py()
    return value
