"""A checkpoint of a topic that was deleted and made again under its name."""

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from anabranch.errors import DataLossError
from anabranch.pipeline.client.client import Topic
from anabranch.pipeline.jobs.backfill import backfill_name
from anabranch.pipeline.lake.settings import PipelineSettings
from anabranch.pipeline.source.same_topic import check_same_topic
from support.checkpoints import note_offsets

OLD, NEW, ZEROS = UUID(int=1), UUID(int=2), UUID(int=0)


def _settings(folder: Path, **changes: Any) -> PipelineSettings:
    return PipelineSettings("h:1", "t", str(folder / "lake"), "rows", checkpoint=str(folder), **changes)


def _topic(topic_id: UUID) -> Topic:
    return Topic("t", topic_id, {0: ("h", 1)})


def test_it_is_refused_with_what_to_do(tmp_path: Path) -> None:
    note_offsets(tmp_path, 4, "t", {0: 5}, OLD)
    words = (
        f"made again since the checkpoint file://{tmp_path} was.*Remove the checkpoint.*failOnDataLoss=false"
    )
    with pytest.raises(DataLossError, match=words):
        check_same_topic(_settings(tmp_path), _topic(NEW))


def test_whoever_does_not_mind_loss_goes_on(tmp_path: Path) -> None:
    note_offsets(tmp_path, 4, "t", {0: 5}, OLD)
    check_same_topic(_settings(tmp_path, options={"FailOnDataLoss": "false"}), _topic(NEW))


@pytest.mark.parametrize(("kept", "now"), [(OLD, OLD), (ZEROS, NEW), (OLD, ZEROS), (ZEROS, ZEROS)])
def test_the_same_topic_and_unknown_ones_go_on(tmp_path: Path, kept: UUID, now: UUID) -> None:
    note_offsets(tmp_path, 4, "t", {0: 5}, kept)
    check_same_topic(_settings(tmp_path), _topic(now))


def test_without_a_checkpoint_or_a_topic_there_is_nothing_to_compare(tmp_path: Path) -> None:
    check_same_topic(_settings(tmp_path), _topic(NEW))
    note_offsets(tmp_path, 4, "t", {0: 5}, OLD)
    check_same_topic(_settings(tmp_path), None)


def test_the_same_range_of_another_topic_is_another_backfill() -> None:
    names = {backfill_name("t", "a", "b", topic_id) for topic_id in (None, OLD, NEW)}
    assert len(names) == 3
    assert backfill_name("t", "a", "b", OLD) in names
