"""Settings from a TOML file: tables flatten into dotted names.

`[log.retention]` with `ms = 1000` and `"log.retention.ms" = 1000` mean the same. A name that is also the
beginning of another (`flush` and `flush.interval.ms`) needs quotes: `"flush.interval.ms" = 500`.

One file may serve all brokers of a cluster: what stands in the table `[broker.2]` holds for broker 2 alone.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

from anabranch.errors import InvalidConfigError


def read_settings_file(path: str | Path) -> dict[str, object]:
    """Dotted names and values, not yet judged: `NodeSettings.load` does that."""
    try:
        parsed = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidConfigError(f"{path} cannot be read ({error.strerror}): check the path.") from error
    except UnicodeDecodeError as error:
        raise InvalidConfigError(f"{path} is not UTF-8 text: save it as TOML in UTF-8.") from error
    except tomllib.TOMLDecodeError as error:
        raise InvalidConfigError(f"{path} is not TOML ({error}): correct that line.") from error
    settings: dict[str, object] = {}
    for name, value in _flattened("", parsed):
        if name in settings:
            raise InvalidConfigError(f"{path} sets {name} twice: remove one of the two.")
        settings[name] = value
    return settings


def _flattened(prefix: str, table: dict[str, object]) -> Iterator[tuple[str, object]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flattened(f"{prefix}{key}.", value)
        else:
            yield f"{prefix}{key}", value


# --- one file for many brokers ---------------------------------------------------------------------------

_OF_A_BROKER = re.compile(r"broker\.([0-9]{1,10})\.(.+)")


def broker_tables(settings: Mapping[str, object]) -> dict[int, dict[str, object]]:
    """What the tables `[broker.N]` of a file say, by number."""
    tables: dict[int, dict[str, object]] = {}
    for name, value in settings.items():
        match = _OF_A_BROKER.fullmatch(name)
        if match:
            tables.setdefault(int(match[1]), {})[match[2]] = value
    return tables


def settings_of_broker(settings: Mapping[str, object], broker_id: object = None) -> dict[str, object]:
    """What a file says of one broker: its own table over what holds for all of them.

    Without a peer.join of its own it joins all the others of the file; the one with the lowest number joins nobody,
    because somebody has to begin.
    """
    tables = broker_tables(settings)
    common = {name: value for name, value in settings.items() if not _OF_A_BROKER.fullmatch(name)}
    if not tables:
        return common
    known = ", ".join(map(str, sorted(tables)))
    chosen = _number(common.get("broker.id") if broker_id is None else broker_id)
    if chosen is None:  # Not said, or not a number.
        raise InvalidConfigError(f"The file is for brokers {known}: say which one this is with --broker-id.")
    if chosen not in tables:
        raise InvalidConfigError(f"The file has no table [broker.{chosen}], only those of {known}: add it.")
    merged = {**common, **tables[chosen], "broker.id": chosen}
    if "peer.join" not in merged and chosen != min(tables):
        merged["peer.join"] = [
            table.get("peer.advertise") or table["peer.listen"]
            for number, table in sorted(tables.items())
            if number != chosen and "peer.listen" in table
        ]
    return merged


def _number(given: object) -> int | None:
    """A broker id as TOML or a person wrote it; None for what is no number."""
    return int(str(given)) if str(given).isdecimal() else None
