"""Which form runs, and that the compiled one is not missing where it is expected."""

import json
import os
import subprocess
import sys

import pytest

from anabranch.record import backend as form


def told_by_version(*arguments: str, **environment: str) -> str:
    program = "from anabranch.cli.main import main; main()"
    command = [sys.executable, "-c", program, "version", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, env=os.environ | environment
    ).stdout


@pytest.mark.skipif(os.environ.get("CI") != "true", reason="only CI promises a C compiler")
def test_ci_runs_the_compiled_form_unless_it_asked_for_the_pure_one() -> None:
    """An optional build falls back without a word; here it may not."""
    assert form.COMPILED or form.PURE_WANTED


def test_the_environment_can_ask_for_the_pure_form() -> None:
    assert "pure" in told_by_version(ANABRANCH_PURE="1")
    assert json.loads(told_by_version("--format", "json", ANABRANCH_PURE="1"))["form"] == "pure"


@pytest.mark.parametrize("value", ["", "0"])
def test_the_compiled_form_runs_where_it_is_built_and_nobody_asks_for_the_other(value: str) -> None:
    pytest.importorskip("anabranch.record._fast")
    assert "compiled" in told_by_version(ANABRANCH_PURE=value)
