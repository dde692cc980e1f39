"""Topics that go into the object store and out of it while they are written to and read."""

import json
from collections.abc import Iterator
from uuid import UUID

import pytest

from anabranch.broker.object import mode_changes
from anabranch.cluster.metadata.table import MetadataTable
from anabranch.modes.ring.state import SILENCE_MS
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode as E
from support.broker_cluster import close_all
from support.form_cluster import EARLIEST, LATEST, MAX_TIMESTAMP, FormCluster


@pytest.fixture(autouse=True)
def clusters_end() -> Iterator[None]:
    yield
    close_all()


@pytest.mark.parametrize("kept", ["ring", "solo"])
def test_records_survive_each_change_under_load_and_no_disk_keeps_what_is_stored(kept: str) -> None:
    cluster = FormCluster(kept, 2)
    for _ in range(20):
        cluster.produce(0)
        cluster.produce(1)
    for _ in range(2):
        cluster.change("object", "stored", partitions=2)
        cluster.produce(0)
        cluster.until(lambda: cluster.folders() == [])
        cluster.check(0)
        cluster.check(1)
        cluster.produce(0, repeat=True)
        cluster.produce(1, repeat=True)
        cluster.change(kept, "kept", partitions=2)
        cluster.produce(1)
        cluster.produce(0, repeat=True)
        cluster.check(0)
        cluster.check(1)
        copies = 3 if kept == "ring" else 1
        cluster.until(lambda copies=copies: len(cluster.folders()) == 2 * copies)
    cluster.run(3000)
    cluster.check(0)


def test_a_change_that_is_called_off_leaves_everything_as_it_was() -> None:
    cluster = FormCluster("ring")
    for _ in range(10):
        cluster.produce()
    store = cluster.spoil()
    assert cluster.alter("object")["error_code"] == 0
    cluster.run(3000)
    assert cluster.forms() == {"kept"}
    assert cluster.placement().leaves_for_store
    assert cluster.alter("ring")["error_code"] == 0
    store.is_away = False
    cluster.run(3000)
    placement = cluster.placement()
    assert placement.target is None
    assert not cluster.leader.metadata.table.topics["t"].forms
    cluster.produce()
    cluster.check()
    assert cluster.head().end == 0


def test_what_was_copied_is_taken_back_when_the_change_is_called_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mode_changes, "PIECE_BYTES", 1)
    cluster = FormCluster("ring")
    cluster.produce()
    cluster.change("object", "stored")
    cluster.change("ring", "kept")
    floor = cluster.placement().floor
    for _ in range(5):
        cluster.produce()
    store = cluster.spoil(after_puts=2)
    assert cluster.alter("object")["error_code"] == 0
    cluster.until(lambda: cluster.head().end == floor + 2)
    cluster.run(1000)
    assert cluster.alter("ring")["error_code"] == 0
    cluster.run(1000)
    assert cluster.head().end == floor
    assert not cluster.placement().leaves_for_store
    store.is_away = False
    cluster.produce()
    cluster.check()
    cluster.change("object", "stored")
    cluster.check()


def test_another_leader_copies_a_compacted_topic_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mode_changes, "PIECE_BYTES", 1)
    cluster = FormCluster("ring", **{"cleanup.policy": "compact"})
    for _ in range(5):
        cluster.produce()
    store = cluster.spoil(after_puts=2)
    assert cluster.alter("object")["error_code"] == 0
    cluster.until(lambda: cluster.head().end == 2)
    (leader,) = [each for each in cluster.lives if cluster.leader_of(0) == each]
    cluster.kill(leader)
    cluster.until(lambda: cluster.leader_id is not None and cluster.head().end == 0, 60_000)
    store.is_away = False
    cluster.start(leader)
    cluster.until(lambda: cluster.is_done("stored"), 60_000)
    cluster.check()


def test_clients_see_generations_that_only_grow() -> None:
    cluster = FormCluster("ring")
    cluster.produce()
    seen = [cluster.generation()]
    for mode, form in (("object", "stored"), ("ring", "kept"), ("object", "stored"), ("solo", "kept")):
        cluster.change(mode, form)
        cluster.produce()
        seen.append(cluster.generation())
    assert seen == sorted(set(seen)), seen


def test_a_reader_of_an_earlier_generation_is_not_told_that_records_were_cut() -> None:
    cluster = FormCluster("ring")
    cluster.produce()
    first = cluster.generation()
    cluster.change("object", "stored")
    stored_end, stored = cluster.offset(LATEST), cluster.generation()
    assert cluster.end_of(first)[1] >= stored_end
    cluster.change("ring", "kept")
    cluster.produce()
    floor = cluster.placement().floor
    for generation in (0, first, stored):
        assert cluster.end_of(generation)[1] == floor
    assert cluster.end_of(cluster.generation())[1] == cluster.offset(LATEST)
    assert cluster.fetch(floor, last_fetched_epoch=first)["diverging_epoch"]["end_offset"] == -1


def test_times_and_the_newest_record_are_found_across_the_floor() -> None:
    cluster = FormCluster("object")
    times = []
    for _ in range(6):
        times.append(cluster.clock.wall_ms())
        cluster.produce()
        cluster.run(100)
    cluster.change("ring", "kept")
    floor = cluster.placement().floor
    cluster.run(100)
    times_after = cluster.clock.wall_ms()
    cluster.produce()
    assert cluster.offset(times[3]) == 3
    assert cluster.offset(times_after) == len(cluster.written[0]) - 1 >= floor
    assert cluster.offset(MAX_TIMESTAMP) == len(cluster.written[0]) - 1
    assert cluster.offset(EARLIEST) == 0


def test_deletion_reaches_below_the_floor_at_it_and_beyond() -> None:
    cluster = FormCluster("object")
    for _ in range(6):
        cluster.produce()
    cluster.change("ring", "kept")
    for _ in range(4):
        cluster.produce()
    floor, end = cluster.placement().floor, len(cluster.written[0])
    for start in (2, floor, floor + 2):
        assert cluster.delete_below(start) == start
        assert cluster.offset(EARLIEST) == start
        assert cluster.values(start=start) == cluster.written[0][start:end]
        assert cluster.fetch_code(start - 1) == E.OFFSET_OUT_OF_RANGE
    cluster.change("object", "stored")
    assert cluster.offset(EARLIEST) == floor + 2
    assert cluster.values(start=floor + 2) == cluster.written[0][floor + 2 :]


def test_a_deleted_topic_leaves_nothing_in_the_table_or_on_a_disk() -> None:
    cluster = FormCluster("object")
    cluster.produce()
    cluster.change("ring", "kept")
    cluster.produce()
    key = cluster.key()
    body = {"topics": [{"name": "t", "topic_id": UUID(int=0)}], "timeout_ms": 5000}
    (answer,) = cluster.ask(1, ApiKey.DELETE_TOPICS, 6, body)["responses"]
    assert answer["error_code"] == 0
    cluster.until(lambda: cluster.folders() == [])
    table = cluster.leader.metadata.table.objects
    assert key not in list(table.keys())
    assert not list(table.referenced())


def test_retention_deletes_what_is_left_in_the_store() -> None:
    cluster = FormCluster("object", **{"retention.ms": "20000"})
    for _ in range(3):
        cluster.produce()
    cluster.change("ring", "kept")
    floor = cluster.placement().floor
    cluster.run(400_000)
    assert cluster.offset(EARLIEST) >= floor
    assert cluster.head().size_bytes == 0


def test_the_past_goes_when_the_first_records_behind_it_have_gone() -> None:
    cluster = FormCluster("object")
    cluster.produce()
    cluster.change("ring", "kept")
    for _ in range(3):
        cluster.produce()
    leader = cluster.leader_of(0)
    assert leader is not None
    partition = cluster.broker(leader).topics.partition("t", 0)
    partition.log.advance_start(cluster.placement().floor + 1)  # As retention by size does.
    assert cluster.offset(EARLIEST) == cluster.placement().floor + 1
    assert cluster.head().size_bytes > 0
    cluster.run(400_000)
    assert cluster.head().size_bytes == 0


def test_a_partition_that_comes_from_the_store_is_led_at_once() -> None:
    cluster = FormCluster("object")
    cluster.produce()
    assert cluster.alter("ring")["error_code"] == 0
    cluster.until(lambda: cluster.forms() == {"kept"})
    begun_ms = cluster.clock.monotonic_ms()
    cluster.produce()
    assert cluster.clock.monotonic_ms() - begun_ms < SILENCE_MS


def test_what_cannot_be_is_refused_with_a_sentence() -> None:
    cluster = FormCluster("ring")
    assert "not a mode" in cluster.alter("river")["error_message"]
    cluster.do(cluster.broker(1).topics.create_on_use("__consumer_offsets"))
    assert "is internal" in cluster.alter("object", "__consumer_offsets")["error_message"]
    cluster.produce()
    store = cluster.spoil()
    assert cluster.alter("object")["error_code"] == 0
    cluster.run(500)
    body = {
        "topics": [{"name": "t", "count": 2, "assignments": None}],
        "timeout_ms": 5000,
        "validate_only": False,
    }
    (answer,) = cluster.ask(1, ApiKey.CREATE_PARTITIONS, 2, body)["results"]
    assert "is changing its mode" in answer["error_message"]
    store.is_away = False
    cluster.until(lambda: cluster.is_done("stored"))
    (answer,) = cluster.ask(1, ApiKey.CREATE_PARTITIONS, 2, body)["results"]
    assert answer["error_code"] == 0
    cluster.run(500)
    cluster.written[1] = []
    cluster.produce(1)
    cluster.check(1)


def test_a_table_read_back_from_its_snapshot_is_the_same() -> None:
    cluster = FormCluster("ring", 2)
    cluster.produce(0)
    cluster.change("object", "stored", partitions=2)
    cluster.change("ring", "kept", partitions=2)
    table = cluster.leader.metadata.table
    again = MetadataTable()
    again.restore(json.loads(json.dumps(table.snapshot())))
    assert again.topics == table.topics
    assert cluster.placement().floor > 0
