"""The program in `java/`: how to run a class of it."""

import hashlib
import subprocess
from collections.abc import Sequence
from pathlib import Path

from clients.registries import cache_folder, filled_once, kafka_jars, program

SOURCES = Path(__file__).with_name("java")
COMPILE_S_MAX = 300.0
FLAGS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Each lives for seconds, next to many others."""


def java_command() -> list[str]:
    """What to put before the name of a class. Whoever comes first compiles it, once for each state of the sources.

    Raises Unavailable where something is missing; what does not compile fails.
    """
    javac, java = (program(name, "default-jdk-headless") for name in ("javac", "java"))
    jars = kafka_jars("kafka-clients")
    sources = sorted(SOURCES.glob("*.java"))
    state = hashlib.sha256(b"".join(source.read_bytes() for source in sources) + jars.encode())
    classes = cache_folder() / "java-classes" / state.hexdigest()[:16]
    with filled_once(classes) as missing:
        if missing:
            _compile([javac, "-cp", jars, "-d", str(classes)], sources)
    return [java, *FLAGS, "-cp", f"{classes}:{jars}"]


def _compile(command: Sequence[str], sources: Sequence[Path]) -> None:
    done = subprocess.run(
        [*command, "-encoding", "UTF-8", "-Werror", *map(str, sources)],
        capture_output=True, text=True, timeout=COMPILE_S_MAX,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
