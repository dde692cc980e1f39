"""What a pipeline says when its progress cannot be shown by its group."""

from pathlib import Path

import pytest

from anabranch.pipeline.jobs.group_progress import commit_progress
from support.lake_tables import settings


def test_a_table_that_was_never_made_is_no_reason_to_warn(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    commit_progress(settings(tmp_path, to="parquet"))
    assert caplog.text == ""


def test_a_table_that_cannot_be_opened_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "catalog.db").write_text("no database at all")
    commit_progress(settings(tmp_path))
    assert "not shown by its group: The table rows in" in caplog.text
