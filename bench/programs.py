"""Programs the benchmark needs: C compiled into a cache folder, Java and Kafka's jars from where the tests get them."""

import hashlib
import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clients.registries import Unavailable, cache_folder, program

SOURCES = Path(__file__).parent
RUN_S_MAX = 900.0

__all__ = ["Unavailable", "compiled", "load_program", "run_json"]


def compiled(source: Path, *libraries: str) -> Path:
    """The program built from a C source; built once for each state of the source."""
    compiler = program("cc", "gcc")
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    folder = cache_folder() / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{source.stem}-{digest}"
    if not target.exists():
        unfinished = target.with_suffix(f".{os.getpid()}")
        flags = ["-O2", "-Wall", "-Wextra", "-o", str(unfinished), str(source)]
        done = subprocess.run(
            [compiler, *flags, *(f"-l{name}" for name in libraries)], capture_output=True, text=True
        )
        if done.returncode:
            raise Unavailable(f"{source.name} does not compile: {done.stderr[-1000:]}")
        unfinished.replace(target)
    return target


def load_program() -> Path:
    return compiled(SOURCES / "load.c")


def run_json(command: Sequence[str]) -> dict[str, Any]:
    """Run a program that answers with one line of JSON."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S_MAX)
    if done.returncode:
        raise RuntimeError(f"{Path(command[0]).name} failed: {(done.stderr + done.stdout)[-1000:].strip()}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer
