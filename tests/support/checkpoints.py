"""Checkpoints as Spark writes them, for tests without Spark."""

import json
from pathlib import Path
from uuid import UUID


def note_offsets(checkpoint: Path, batch: int, topic: str, offsets: dict[int, int], topic_id: UUID) -> None:
    """Spark's file of how far this batch goes."""
    folder = checkpoint / "offsets"
    folder.mkdir(parents=True, exist_ok=True)
    ends = {str(partition): offset for partition, offset in offsets.items()}
    lines = ["v1", json.dumps({"batchTimestampMs": 1}), json.dumps({topic: {**ends, "id": str(topic_id)}})]
    (folder / str(batch)).write_text("\n".join(lines))
