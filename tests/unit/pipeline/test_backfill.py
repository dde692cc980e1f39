"""Where a job keeps its place that is not the pipeline of its topic."""

from pathlib import Path

import pytest

from anabranch.pipeline.jobs.backfill import named
from support.lake_tables import settings


@pytest.mark.parametrize("given", ["", "/c", "s3://lake/c/"])
def test_a_named_pipeline_has_a_checkpoint_of_its_own(tmp_path: Path, given: str) -> None:
    told = settings(tmp_path, checkpoint=given)
    places = {named(told, name, "t.dlq").checkpoint_uri for name in ("t@1", "t@2")}
    assert len(places | {told.checkpoint_uri}) == 3
    assert all(place.rsplit("/", 1)[1] in ("t@1", "t@2") for place in places)
