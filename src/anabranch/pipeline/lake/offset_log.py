"""How far a batch goes, by the log of offsets in Spark's checkpoint: known without reading a record.

    v1                                              the version of the format
    {"batchTimestampMs": ...}                       Spark's own
    {"orders": {"0": 5, "1": 7, "id": "<uuid>"}}    our source's: see `anabranch.pipeline.source.offsets`

Spark writes `offsets/<batch>` before it hands the batch to anybody, and the same file stands when it repeats the batch.
Records may end earlier than the offsets do: compaction and transactions leave gaps.
"""

import json

from anabranch.errors import TableError
from anabranch.pipeline.lake.change import BatchEnd, known_id
from anabranch.pipeline.lake.formats.storage import listed, read_text
from anabranch.pipeline.source.offsets import Progress

FOLDER = "offsets"
VERSION = "v1"
NO_OFFSET = "-"
"""Spark's word for a source that has not said anything yet."""
NO_BATCH = -1


def batch_end(checkpoint: str, topic: str, batch: int) -> BatchEnd | None:
    """None if the checkpoint does not say, or says it in a format of another version."""
    address = f"{checkpoint}/{FOLDER}/{batch}"
    text = read_text(address)
    if text is None:
        return None
    try:
        return parsed(text, topic)
    except (ValueError, TypeError, AttributeError) as error:
        raise TableError(
            f"{address} cannot be read: {error}. Remove the checkpoint: the table knows how far it came."
        ) from error


def parsed(text: str, topic: str) -> BatchEnd | None:
    version, *lines = text.splitlines()
    if version != VERSION:
        return None
    said = lines[1] if len(lines) > 1 else NO_OFFSET
    if said == NO_OFFSET:
        return BatchEnd()
    progress = Progress.from_json(json.loads(said))
    offsets = {place.partition: at for place, at in progress.offsets.items() if place.topic == topic}
    topic_id = progress.topic_ids.get(topic)
    return BatchEnd(offsets, None if topic_id is None else known_id(topic_id))


def last_batch(checkpoint: str, folder: str = FOLDER) -> int:
    """The greatest number among the files of Spark's checkpoint; -1: there is none."""
    names = (found.path.rsplit("/", 1)[-1] for found in listed(f"{checkpoint}/{folder}"))
    return max((int(name) for name in names if name.isdigit()), default=NO_BATCH)


def last_end(checkpoint: str, topic: str) -> BatchEnd | None:
    """Of the last batch that was begun; None if there was none."""
    return batch_end(checkpoint, topic, last_batch(checkpoint))
