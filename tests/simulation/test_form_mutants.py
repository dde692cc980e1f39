"""What keeps records safe when a topic goes into the object store and out of it: without any one of these rules a run
is seen to lose or double records."""

from collections.abc import Iterator
from typing import Any

import pytest

from anabranch.broker.object.archived_prefix import StoredPrefix
from anabranch.broker.object.mode_changes import Bringing
from anabranch.broker.topics.partition_opener import PartitionOpener
from anabranch.broker.topics.topics import Topics
from anabranch.cluster.metadata.entries import keep_entry, topic_config_entry
from anabranch.cluster.metadata.table import MetadataTable
from anabranch.modes.ring.moves import RingMoves
from anabranch.values import BrokerId
from support.broker_cluster import close_all
from support.form_cluster import FormCluster

SEEDS = (1, 2, 3)


@pytest.fixture(autouse=True)
def clusters_end() -> Iterator[None]:
    yield
    close_all()


def there_and_back() -> None:
    """Each time the last record is sent again, as by a producer that was not told of it. What a seed notices hangs on
    who is quicker, the store or the end of a view."""
    for seed in SEEDS:
        _there_and_back(FormCluster("ring", seed=seed))


def _there_and_back(cluster: FormCluster) -> None:
    for _ in range(5):
        cluster.produce()
    cluster.change("object", "stored")
    cluster.alter("ring")
    cluster.until(lambda: cluster.is_done("kept"))
    for mode, form in (("object", "stored"), ("ring", "kept")):
        cluster.produce(repeat=True)
        cluster.check()
        cluster.change(mode, form)
    cluster.check()


def away_all_the_while() -> None:
    """A broker sleeps through a change and its way back, and is to lead again when it wakes up."""
    cluster = FormCluster("ring")
    for _ in range(5):
        cluster.produce()
    sleeper = cluster.leader_of(0)
    assert sleeper is not None
    cluster.kill(sleeper)
    cluster.change("object", "stored")
    cluster.produce()
    cluster.do(_keep(cluster, [sleeper, *cluster.lives]))
    cluster.run(100)
    cluster.start(sleeper)
    cluster.until(lambda: cluster.leader_of(0) == sleeper, 60_000)
    for _ in range(3):
        cluster.produce()
    cluster.check()


async def _keep(cluster: FormCluster, replicas: list[int]) -> None:
    """As if it had been counted on a moment ago."""
    metadata = cluster.leader.metadata
    async with metadata.lock:
        await metadata.commit(topic_config_entry("t", {"anabranch.mode": "ring"}))
        await metadata.commit(keep_entry(cluster.key()[0], 0, [BrokerId(each) for each in replicas]))


def test_with_all_rules_nothing_is_lost_or_doubled() -> None:
    there_and_back()
    away_all_the_while()


def test_producers_that_stay_behind_write_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bringing, "_news", lambda self, end: [])
    with pytest.raises(AssertionError):
        there_and_back()


def test_producers_that_are_forgotten_on_the_way_back_write_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StoredPrefix, "producers", lambda self: {})
    with pytest.raises(AssertionError):
        there_and_back()


def test_a_view_that_ends_before_the_store_has_everything_loses_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def anywhere(self: MetadataTable, topic: Any, partition: int, entry: Any) -> None:
        key = topic.topic_id, partition
        original(self, topic, partition, {**entry, "start": self.objects.head(key).end})

    original = MetadataTable._store
    monkeypatch.setattr(MetadataTable, "_store", anywhere)
    monkeypatch.setattr(RingMoves, "_is_kept_by_target", lambda self, leader, end: True)
    with pytest.raises(AssertionError):
        there_and_back()


def test_a_disk_of_before_must_not_be_taken_for_one_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PartitionOpener, "_is_of_before", lambda self, partition_id, placement: False)
    monkeypatch.setattr(Topics, "_has_form", staticmethod(_has_kind))
    with pytest.raises(AssertionError):
        away_all_the_while()


def _has_kind(partition: Any, topic: Any, placement: Any) -> bool:
    return bool(partition.has_files != topic.is_stored(partition.id.partition))
