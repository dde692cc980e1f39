"""Is the topic still the one whose offsets are kept? One that was deleted and made again under its name is another.

Every topic has an identity of its own, which brokers tell (very old ones do not: then nobody can know). Offsets of the
old topic mean nothing in the new one: whoever went on at them would leave out its first records.
"""

from uuid import UUID

from anabranch.errors import DataLossError
from anabranch.pipeline.client.client import Client, Topic
from anabranch.pipeline.lake.change import are_different, known_id
from anabranch.pipeline.lake.settings import PipelineSettings
from anabranch.pipeline.source.options import reader_options


def named_topic(settings: PipelineSettings) -> Topic | None:
    """The topic as it is now; None if there is none of that name."""
    with Client(settings.bootstrap) as client:
        return client.cluster([settings.topic]).topics.get(settings.topic)


def id_of(topic: Topic | None) -> UUID | None:
    return None if topic is None else known_id(topic.id)


def is_of_another(settings: PipelineSettings, topic: Topic | None) -> bool:
    """Is the checkpoint one of an older topic of this name?"""
    from anabranch.pipeline.lake.offset_log import last_end

    last = last_end(settings.checkpoint_uri, settings.topic)
    return last is not None and are_different(last.topic_id, id_of(topic))


def check_same_topic(settings: PipelineSettings, topic: Topic | None) -> None:
    """DataLossError if the checkpoint is one of an older topic of this name, unless the pipeline is not to mind."""
    if not is_of_another(settings, topic) or not _minds_loss(settings):
        return
    raise DataLossError(
        f"The topic {settings.topic} was deleted and made again since the checkpoint {settings.checkpoint_uri} was "
        f"written, which holds offsets of the old one. Remove the checkpoint to read the new topic from its beginning "
        f"(the rows of the old one stay in {settings.table}; for a table without them, name another table), or set "
        "the option failOnDataLoss=false to do so without asking."
    )


def _minds_loss(settings: PipelineSettings) -> bool:
    named = {"bootstrap": settings.bootstrap, "topic": settings.topic}
    return reader_options({**named, **settings.options}).fail_on_data_loss
