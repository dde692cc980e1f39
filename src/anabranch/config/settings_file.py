"""Settings from a TOML file: tables flatten into dotted names.

`[log.retention]` with `ms = 1000` and `"log.retention.ms" = 1000` mean the same. A name that is also the
beginning of another (`flush` and `flush.interval.ms`) needs quotes: `"flush.interval.ms" = 500`.
"""

import tomllib
from collections.abc import Iterator
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
