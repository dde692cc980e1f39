"""What the two code generators share: lines of Python that remember which field they are about.

Generated code has no error handling of its own. When one of its lines fails, the line's number says which
field it was, so naming the field costs nothing while all goes well.
"""

import struct
from collections.abc import Callable
from typing import Any

from anabranch.wire import primitives
from anabranch.wire.table import Field, Message


class Source:
    """A function under construction."""

    def __init__(self, message: Message, version: int, signature: str) -> None:
        self.message = message
        self.version = version
        self.flexible = message.is_flexible_in(version)
        self.compact = "compact_" if self.flexible else ""
        self.namespace: dict[str, Any] = dict(vars(primitives))
        self._lines = [signature]
        self._paths = ["(start)"]
        self._names = 0

    def line(self, depth: int, text: str, path: str) -> None:
        self._lines.append("    " * depth + text)
        self._paths.append(path)

    def name(self, prefix: str = "v") -> str:
        """A local variable nobody else has."""
        self._names += 1
        return f"{prefix}{self._names}"

    def constant(self, prefix: str, value: object) -> str:
        name = self.name(prefix)
        self.namespace[name] = value
        return name

    def fixed(self, formats: str) -> struct.Struct:
        return struct.Struct(">" + formats)

    def untagged(self, fields: tuple[Field, ...]) -> list[Field]:
        return [field for field in fields if field.tag is None and field.exists_in(self.version)]

    def tagged(self, fields: tuple[Field, ...]) -> list[Field]:
        found = [field for field in fields if field.tag is not None and field.exists_in(self.version)]
        return sorted(found, key=lambda field: field.tag or 0)

    def is_nullable(self, field: Field) -> bool:
        return field.is_nullable_in(self.version)

    @property
    def text(self) -> str:
        return "\n".join(self._lines) + "\n"

    def path_at(self, line_number: int) -> str:
        return self._paths[line_number - 1]

    def function(self, name: str) -> Callable[..., Any]:
        code = compile(self.text, f"<{self.message.name} v{self.version} {name}>", "exec")
        exec(code, self.namespace)
        built: Callable[..., Any] = self.namespace[name]
        return built
