"""One setting: how its value is read, bounded, refused and shown.

Settings are declared as dataclass fields through the small functions at the end (`whole`, `flag`, `choice`,
...), so that name, type, default, bounds and sentence stand on one line and nowhere else. `settings_of` turns
such a dataclass into the table of its settings. Every refusal is an `InvalidConfigError` naming the setting.
"""

import dataclasses
import difflib
import ipaddress
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from anabranch.errors import InvalidConfigError

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1

Value = bool | int | float | str | tuple[str, ...] | None


class Kind(IntEnum):
    """What a value is; the numbers are those of Kafka's DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


class ConfigSource(IntEnum):
    """Where a value comes from; the numbers are those of Kafka's DescribeConfigs."""

    TOPIC = 1
    NODE = 4
    DEFAULT = 5


class Synonym(NamedTuple):
    name: str
    value: str | None
    source: ConfigSource


class ConfigEntry(NamedTuple):
    """One line of an answer to DescribeConfigs."""

    name: str
    value: str | None
    source: ConfigSource
    kind: Kind
    doc: str
    read_only: bool
    synonyms: tuple[Synonym, ...]

    @property
    def is_default(self) -> bool:
        return self.source is ConfigSource.DEFAULT


@dataclass(frozen=True, slots=True)
class Setting:
    """The facts of one setting. `name` is filled in by `settings_of`."""

    kind: Kind
    default: Value
    doc: str
    name: str = ""
    low: float = -math.inf
    high: float = math.inf
    choices: tuple[str, ...] = ()
    check: Callable[[Any], str | None] | None = None
    """Gets the parsed value, returns what is wrong with it and the next step, or None."""
    has_effect: bool = True
    """False: accepted because Kafka's tools send it, remembered and shown, but nothing here depends on it."""
    node_default: str = ""
    """Of a topic's setting: the attribute of `NodeSettings` that is its default, if there is one."""
    synonyms: tuple[str, ...] = ()
    """Of a topic's setting: the node's settings that decide its default, the strongest first."""

    def parse(self, given: object) -> Value:
        """The value of what a user wrote: a string, or what TOML made of it."""
        value = _READERS[self.kind](self, given)
        if isinstance(value, int | float) and not isinstance(value, bool):
            self._check_bounds(value)
        if self.choices:
            self._check_choices(value if isinstance(value, tuple) else (value,))
        problem = self.check(value) if self.check else None
        if problem:
            raise InvalidConfigError(f"{self.name}={text_of(value)} {problem}")
        return value

    def refuse(self, given: object, wanted: str) -> InvalidConfigError:
        return InvalidConfigError(
            f"{self.name}={text_of_any(given)} is not {wanted}: give it {self.expected}."
        )

    @property
    def expected(self) -> str:
        """What may be written, in words, for messages and for the list of settings."""
        if self.choices:
            return ("any of " if self.kind is Kind.LIST else "one of ") + ", ".join(self.choices)
        if self.kind in (Kind.INT, Kind.LONG, Kind.DOUBLE):
            noun = "a number" if self.kind is Kind.DOUBLE else "a whole number"
            return f"{noun} from {_bound(self.low)} to {_bound(self.high)}"
        return {Kind.BOOLEAN: "true or false", Kind.STRING: "text", Kind.LIST: "names joined by commas"}[
            self.kind
        ]

    def _check_bounds(self, value: float) -> None:
        if not self.low <= value <= self.high:
            raise self.refuse(value, "within its bounds")

    def _check_choices(self, values: Iterable[Value]) -> None:
        for value in values:
            if value not in self.choices:
                raise self.refuse(value, "known")


def _bound(number: float) -> str:
    return f"{number:g}" if isinstance(number, float) else str(number)


def text_of(value: Value) -> str | None:
    """A value as Kafka's tools write it."""
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case tuple():
            return ",".join(value)
        case _:
            return str(value)


def text_of_any(given: object) -> str:
    return "true" if given is True else "false" if given is False else str(given)


# --- reading one kind of value ---------------------------------------------------------------------------


def _read_whole(setting: Setting, given: object) -> int:
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    text = given.strip() if isinstance(given, str) else ""
    digits = text[1:] if text[:1] in ("-", "+") else text
    # int() alone would also take "1_000" and digits of other scripts, which Kafka refuses. The length limit
    # keeps a hostile string of digits from costing time.
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 20):
        raise setting.refuse(given, "a whole number")
    return int(text)


def _read_double(setting: Setting, given: object) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float | str):
        raise setting.refuse(given, "a number")
    try:
        number = float(given)
    except (ValueError, OverflowError):
        raise setting.refuse(given, "a number") from None
    if not math.isfinite(number):
        raise setting.refuse(given, "a number")
    return number


def _read_boolean(setting: Setting, given: object) -> bool:
    if isinstance(given, bool):
        return given
    text = given.strip().lower() if isinstance(given, str) else ""
    if text not in ("true", "false"):
        raise setting.refuse(given, "a yes or no")
    return text == "true"


def _read_text(setting: Setting, given: object) -> str:
    if not isinstance(given, str):
        raise setting.refuse(given, "text")
    return given.strip()


def _read_list(setting: Setting, given: object) -> tuple[str, ...]:
    if isinstance(given, str):
        given = given.split(",")
    if not (isinstance(given, list | tuple) and all(isinstance(item, str) for item in given)):
        raise setting.refuse(given, "a list")
    names = (item.strip() for item in given)
    return tuple(dict.fromkeys(name for name in names if name))


_READERS: dict[Kind, Callable[[Setting, object], Value]] = {
    Kind.BOOLEAN: _read_boolean,
    Kind.STRING: _read_text,
    Kind.INT: _read_whole,
    Kind.LONG: _read_whole,
    Kind.DOUBLE: _read_double,
    Kind.LIST: _read_list,
}


# --- declaring settings ----------------------------------------------------------------------------------


def _declared(setting: Setting) -> Any:
    return dataclasses.field(default=setting.default, metadata={"setting": setting})


def whole(default: int | None, doc: str, low: int = 0, high: int = INT_MAX, **more: Any) -> Any:
    return _declared(Setting(Kind.INT, default, doc, low=low, high=high, **more))


def long(default: int | None, doc: str, low: int = 0, high: int = LONG_MAX, **more: Any) -> Any:
    return _declared(Setting(Kind.LONG, default, doc, low=low, high=high, **more))


def ratio(default: float, doc: str, **more: Any) -> Any:
    return _declared(Setting(Kind.DOUBLE, default, doc, low=0, high=1, **more))


def flag(default: bool, doc: str, **more: Any) -> Any:
    return _declared(Setting(Kind.BOOLEAN, default, doc, **more))


def text(default: str | None, doc: str, **more: Any) -> Any:
    return _declared(Setting(Kind.STRING, default, doc, **more))


def choice(default: str, doc: str, *choices: str, **more: Any) -> Any:
    return _declared(Setting(Kind.STRING, default, doc, choices=choices, **more))


def names(default: tuple[str, ...], doc: str, *choices: str, **more: Any) -> Any:
    return _declared(Setting(Kind.LIST, default, doc, choices=choices, **more))


NAME_LENGTH_MAX = 100


def settings_of(declaring: type) -> dict[str, Setting]:
    """The table of a dataclass's settings by dotted name, in the order they are written."""
    fields = [field for field in dataclasses.fields(declaring) if "setting" in field.metadata]
    dotted = ((field.name.replace("_", "."), field.metadata["setting"]) for field in fields)
    return {name: dataclasses.replace(setting, name=name) for name, setting in dotted}


def attribute_of(name: str) -> str:
    return name.replace(".", "_")


def find_setting(table: Mapping[str, Setting], name: str, hints: Mapping[str, str], what: str) -> Setting:
    """The setting of that name, or an error that says which one was probably meant."""
    setting = table.get(name)
    if setting is not None:
        return setting
    meant = hints.get(name) or next(iter(_near(name, table)), None)
    step = f"did you mean {meant}?" if meant else "docs/settings.md lists them all."
    raise InvalidConfigError(f"There is no {what} called {name}: {step}")


def _near(name: str, table: Mapping[str, Setting]) -> list[str]:
    """The setting whose name is most like this one. To compare a very long name, which is none, takes milliseconds."""
    if len(name) > NAME_LENGTH_MAX:
        return []
    return difflib.get_close_matches(name, table, n=1, cutoff=0.7)


def check_gzip_level(level: int) -> str | None:
    """The `check` of a gzip level: -1 to 9 has a hole at 0, which means "none" to zlib."""
    return "is not a level: take -1 (gzip's own choice) or 1 to 9." if level == 0 else None


# --- addresses -------------------------------------------------------------------------------------------


def host_and_port(address: str) -> tuple[str, int]:
    """HOST:PORT, with an IPv6 host in brackets. Raises ValueError with what is wrong."""
    host, colon, port = address.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError("is not HOST:PORT with a port from 0 to 65535: write for example 127.0.0.1:9092.")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError("needs brackets around its IPv6 host: write for example [::1]:9092.")
    if not host:
        raise ValueError("names no host: write for example 127.0.0.1:9092.")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host. A name other than localhost may be anything: no."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_address(address: str | None) -> str | None:
    """The `check` of a setting that is an address; empty or absent means not set."""
    try:
        if address:
            host_and_port(address)
    except ValueError as problem:
        return str(problem)
    return None


def http_host_and_port(address: str) -> tuple[str, int]:
    """As `host_and_port`; a port alone (8080 or :8080) is one that only this machine can reach."""
    port = address.removeprefix(":")
    return host_and_port(f"127.0.0.1:{port}" if port.isdigit() else address)


def check_http_address(address: str | None) -> str | None:
    """The same as `check_address` for an address that may be a port alone."""
    try:
        if address:
            http_host_and_port(address)
    except ValueError as problem:
        return str(problem)
    return None


def check_origins(origins: tuple[str, ...]) -> str | None:
    """The `check` of a list of origins as browsers send them: scheme, host and port, and nothing behind."""
    for origin in origins:
        scheme, separator, place = origin.partition("://")
        if origin != "*" and (not separator or not scheme or not place or "/" in place or "*" in place):
            return f"holds {origin}, which is no origin: write for example https://app.example.com, or * for any."
    return None
