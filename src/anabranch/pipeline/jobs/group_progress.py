"""A pipeline's progress as a consumer group, so that every Kafka tool shows its lag.

While a query runs, the source commits a batch once Spark begins the next one; the last batch of a run is therefore left
to whoever ends the run, who takes it from the table. Nothing depends on these commits: where to go on is in Spark's
checkpoint and in the table. So one that fails is a warning.
"""

import logging

from anabranch.errors import AnabranchError, TableMissingError
from anabranch.pipeline.client.client import Client
from anabranch.pipeline.lake.change import SourceState, known_id
from anabranch.pipeline.lake.settings import PipelineSettings
from anabranch.pipeline.source.options import reader_options
from anabranch.values import TopicPartition

logger = logging.getLogger("anabranch.pipeline")


def group_of(settings: PipelineSettings) -> str:
    """The consumer group under which the source shows its progress."""
    said = {} if settings.group is None else {"group": settings.group}
    return reader_options({"bootstrap": settings.bootstrap, "topic": settings.topic, **said}).group


def commit_progress(settings: PipelineSettings) -> None:
    """What the table has is what the group has read, as long as it is of the topic that has the name now."""
    from anabranch.pipeline.lake.formats.table import open_table

    group = group_of(settings)
    try:
        state = open_table(settings).state()
        if state is not None:
            _commit(settings, group, state)
    except TableMissingError:
        return  # Nothing was read, so no table was made.
    except AnabranchError as error:
        logger.warning("the progress of %s is in the table, but not shown by its group: %s", group, error)


def _commit(settings: PipelineSettings, group: str, state: SourceState) -> None:
    offsets = {TopicPartition(settings.topic, number): offset for number, offset in state.offsets.items()}
    with Client(settings.bootstrap) as client:
        topic = client.cluster([settings.topic]).topics.get(settings.topic)
        if topic is not None and not state.is_of_another(known_id(topic.id)):
            client.commit_offsets(group, offsets)
