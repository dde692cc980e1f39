"""The processes of the demo end when it leaves them."""

import signal
import sys
from pathlib import Path

import pytest
from examples.demo.children import Child


def test_child_that_ignores_sigterm_is_killed_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("examples.demo.children.STOP_SECONDS_MAX", 0.2)
    ignores = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    deaf = f"{ignores}; print('{{}}', flush=True); time.sleep(600)"
    with Child("A deaf one", [sys.executable, "-c", deaf], tmp_path / "child.log") as child:
        child.first_answer(60)
    assert child.wait() == -signal.SIGKILL
