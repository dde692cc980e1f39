"""How far a batch goes, out of files as Spark writes them."""

from pathlib import Path
from uuid import UUID

import pytest

from anabranch.errors import TableError
from anabranch.pipeline.lake.change import BatchEnd
from anabranch.pipeline.lake.offset_log import batch_end, last_batch, last_end, parsed
from support.checkpoints import note_offsets

TOPIC = UUID(int=9)


def test_ends_and_topic_are_those_of_our_source(tmp_path: Path) -> None:
    note_offsets(tmp_path, 3, "t", {0: 5, 10: 7}, TOPIC)
    assert batch_end(f"file://{tmp_path}", "t", 3) == BatchEnd({0: 5, 10: 7}, TOPIC)


def test_a_broker_without_identities_is_not_known_by_zeros(tmp_path: Path) -> None:
    note_offsets(tmp_path, 0, "t", {0: 5}, UUID(int=0))
    assert batch_end(f"file://{tmp_path}", "t", 0) == BatchEnd({0: 5}, None)


def test_a_checkpoint_that_does_not_have_the_batch_says_nothing(tmp_path: Path) -> None:
    assert batch_end(f"file://{tmp_path}", "t", 3) is None
    assert last_end(f"file://{tmp_path}", "t") is None
    assert last_batch(f"file://{tmp_path}") == -1


def test_the_last_batch_is_the_greatest_number(tmp_path: Path) -> None:
    for batch in (2, 10, 9):
        note_offsets(tmp_path, batch, "t", {0: batch}, TOPIC)
    (tmp_path / "offsets" / ".10.crc").write_text("")
    assert last_end(f"file://{tmp_path}", "t") == BatchEnd({0: 10}, TOPIC)


@pytest.mark.parametrize("said", ["-", "{}", ""])
def test_a_topic_that_was_away_has_no_end(said: str) -> None:
    assert parsed(f"v1\n{{}}\n{said}", "t") == BatchEnd()


def test_another_version_of_the_format_says_nothing() -> None:
    assert parsed('v2\n{}\n{"t": {"0": 5}}', "t") is None


def test_a_spoilt_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text("v1\n{}\n{")
    with pytest.raises(TableError, match=r"offsets/0 cannot be read: .*Remove the checkpoint"):
        batch_end(f"file://{tmp_path}", "t", 0)
