"""Who a pipeline is, by its checkpoint folder."""

from pathlib import Path

import pytest

from anabranch.pipeline.lake import identity
from anabranch.pipeline.lake.identity import identify, with_a_commit


def test_a_checkpoint_makes_a_pipeline_the_same_one_again(tmp_path: Path) -> None:
    first, is_new = identify(f"file://{tmp_path}/c", None)
    assert is_new
    assert identify(f"file://{tmp_path}/c", None) == (first, False)


def test_two_first_starts_at_the_same_moment_are_one_pipeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = f"file://{tmp_path}/c"
    quicker, _ = identify(checkpoint, None)
    monkeypatch.setattr(identity, "read_text", lambda address: None)  # It looked a moment earlier.
    slower, _ = identify(checkpoint, None)
    assert slower == quicker


def test_what_is_written_aside_does_not_stay(tmp_path: Path) -> None:
    first, _ = identify(f"file://{tmp_path}/c", None)
    with_a_commit(f"file://{tmp_path}/c", first)
    assert [path.name for path in (tmp_path / "c").iterdir()] == ["anabranch.json"]
