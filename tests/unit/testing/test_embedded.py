"""EmbeddedBroker: its life, its helpers, its faults, as code under test meets them through a socket."""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from anabranch.errors import UnknownTopicOrPartitionError
from anabranch.testing.embedded import EmbeddedBroker
from anabranch.testing.in_process_client import RequestRefusedError
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode
from support.raw_client import ClosedByBroker, RawClient


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path) as broker:
        yield broker


def values(broker: EmbeddedBroker, topic: str) -> list[bytes | None]:
    return [record.value for record in broker.records(topic)]


def ping(client: RawClient) -> None:
    assert client.ask(ApiKey.API_VERSIONS, 0, {})["error_code"] == 0


# --- records -------------------------------------------------------------------------------------------------


def test_records_come_back_as_they_were_produced(broker: EmbeddedBroker) -> None:
    broker.create_topic("orders", partitions=2)
    assert broker.produce("orders", [b"a", ("key", "b"), ("key", None, (("h", b"1"),))], partition=1) == [
        0,
        1,
        2,
    ]
    records = broker.records("orders")
    assert [
        (record.key, record.value, record.headers, record.partition, record.offset) for record in records
    ] == [
        (None, b"a", (), 1, 0),
        (b"key", b"b", (), 1, 1),
        (b"key", None, (("h", b"1"),), 1, 2),
    ]
    assert broker.records("orders", partition=0) == []


def test_records_in_the_object_store_come_back_too(tmp_path: Path) -> None:
    store = f"file://{tmp_path}/store"
    settings = {"object.store": store, "object.gather.ms": 1, "object.cache.disk.bytes": 0}
    with EmbeddedBroker(tmp_path / "data", settings=settings) as broker:
        broker.create_topic("orders", partitions=2, anabranch_mode="object")
        assert broker.records("orders") == []
        for number in range(5):
            assert broker.produce("orders", [b"%d" % number, b"x"], partition=1) == [
                2 * number,
                2 * number + 1,
            ]
        broker.kill_and_restart()
        found = broker.wait_for_records("orders", count=10)
        assert [record.value for record in found][::2] == [b"0", b"1", b"2", b"3", b"4"]
        assert [(record.partition, record.offset) for record in found] == [
            (1, offset) for offset in range(10)
        ]


def test_a_topic_is_made_with_the_configs_it_is_given(broker: EmbeddedBroker) -> None:
    broker.create_topic("small", max_message_bytes=200)
    with pytest.raises(RequestRefusedError) as refused:
        broker.produce("small", [b"x" * 300])
    assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE


def test_reading_a_topic_that_is_not_there_says_so(broker: EmbeddedBroker) -> None:
    with pytest.raises(UnknownTopicOrPartitionError, match="nowhere"):
        broker.records("nowhere")


def test_waiting_returns_as_soon_as_the_records_are_there(broker: EmbeddedBroker) -> None:
    other = threading.Thread(target=lambda: broker.produce(broker.create_topic("later"), ["x"]))
    other.start()
    assert [record.value for record in broker.wait_for_records("later", 1)] == [b"x"]
    other.join()


def test_waiting_in_vain_says_what_there_was(broker: EmbeddedBroker) -> None:
    broker.create_topic("few")
    broker.produce("few", ["only"])
    with pytest.raises(TimeoutError, match=r"2 records of few.*only"):
        broker.wait_for_records("few", 2, timeout_seconds=0.02)


def test_committed_offsets_are_seen(broker: EmbeddedBroker) -> None:
    broker.create_topic("orders", partitions=2)
    partition = {"partition_index": 1, "committed_offset": 7, "committed_metadata": ""}
    with RawClient(broker.bootstrap) as client:
        client.ask(
            ApiKey.OFFSET_COMMIT,
            8,
            {
                "group_id": "g",
                "generation_id_or_member_epoch": -1,
                "member_id": "",
                "topics": [{"name": "orders", "partitions": [partition]}],
            },
        )
    assert broker.committed("g", "orders") == {1: 7}
    assert broker.wait_for_group("g", state="Empty", members=0).members == ()


# --- life ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("again", [EmbeddedBroker.restart, EmbeddedBroker.kill_and_restart])
def test_records_and_the_port_outlive(broker: EmbeddedBroker, again: object) -> None:
    broker.create_topic("orders")
    broker.produce("orders", ["a"])
    before = broker.bootstrap
    assert callable(again)
    again(broker)
    assert broker.bootstrap == before
    assert broker.produce("orders", ["b"]) == [1]
    assert values(broker, "orders") == [b"a", b"b"]


def test_only_a_clean_restart_leaves_its_mark(broker: EmbeddedBroker) -> None:
    def was_clean() -> bool:
        return broker._ask_broker(lambda inner: inner.state.was_clean)

    broker.restart()
    assert was_clean()
    broker.kill_and_restart()
    assert not was_clean()


def test_connections_break_when_the_broker_is_killed(broker: EmbeddedBroker) -> None:
    with RawClient(broker.bootstrap) as client:
        ping(client)
        broker.kill_and_restart()
        with pytest.raises((ClosedByBroker, ConnectionError)):
            ping(client)


def test_a_temporary_folder_of_its_own_is_removed() -> None:
    with EmbeddedBroker() as broker:
        folder = broker.data_dir
        assert os.path.isdir(folder)
    assert not os.path.exists(folder)


def test_a_broker_that_does_not_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="does not run"):
        EmbeddedBroker(tmp_path).records("x")


def test_no_thread_and_no_descriptor_is_left_behind(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path):
        pass  # What is opened once per process (imports, the first loop) does not count.
    threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
    with EmbeddedBroker(tmp_path) as broker:
        broker.create_topic("orders")
        broker.produce("orders", ["a"])
        broker.kill_and_restart()
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) == descriptors


# --- faults --------------------------------------------------------------------------------------------------


def test_a_failed_write_is_refused_and_the_next_one_is_not(broker: EmbeddedBroker) -> None:
    broker.create_topic("orders")
    broker.create_topic("other")
    broker.faults.fail_next_write("orders", error="ENOSPC")
    broker.produce("other", ["unharmed"])
    with pytest.raises(RequestRefusedError, match="No space left") as refused:
        broker.produce("orders", ["lost"])
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert broker.produce("orders", ["kept"]) == [0]
    assert values(broker, "orders") == [b"kept"]


def test_a_failed_sync_fences_the_partition_until_a_restart(broker: EmbeddedBroker) -> None:
    broker.create_topic("orders")
    broker.faults.fail_next_sync()
    for _ in range(2):
        with pytest.raises(RequestRefusedError, match="KAFKA_STORAGE_ERROR"):
            broker.produce("orders", ["unsure"])
    broker.restart()
    broker.produce("orders", ["sure"])
    assert values(broker, "orders")[-1] == b"sure"


def test_an_unknown_error_name_is_refused(broker: EmbeddedBroker) -> None:
    with pytest.raises(ValueError, match="ENOFUN"):
        broker.faults.fail_next_write(error="ENOFUN")


def test_a_dropped_answer_closes_the_connection_once(broker: EmbeddedBroker) -> None:
    broker.faults.drop_next("api_versions")
    with RawClient(broker.bootstrap) as client, pytest.raises(ClosedByBroker):
        ping(client)
    with RawClient(broker.bootstrap) as client:
        ping(client)


def test_a_dropped_request_was_carried_out(broker: EmbeddedBroker) -> None:
    broker.faults.drop_next(ApiKey.CREATE_TOPICS)
    topic = {"name": "made", "num_partitions": 1, "replication_factor": 1}
    with RawClient(broker.bootstrap) as client, pytest.raises(ClosedByBroker):
        client.ask(ApiKey.CREATE_TOPICS, 7, {"topics": [topic]})
    assert "made" in broker.topics()


def test_dropping_connections_strikes_as_often_as_it_was_told(broker: EmbeddedBroker) -> None:
    broker.faults.drop_connection(count=2)
    for _ in range(2):
        with RawClient(broker.bootstrap) as client, pytest.raises(ClosedByBroker):
            ping(client)
    with RawClient(broker.bootstrap) as client:
        ping(client)


def test_a_delayed_answer_comes_later_and_the_api_that_was_not_named_at_once(broker: EmbeddedBroker) -> None:
    broker.faults.delay("metadata", milliseconds=40)
    with RawClient(broker.bootstrap) as client:
        ping(client)
        start = time.monotonic()
        client.ask(ApiKey.METADATA, 9, {"topics": []})
        assert time.monotonic() - start >= 0.04


def test_a_delayed_answer_for_a_client_that_left_harms_nobody(broker: EmbeddedBroker) -> None:
    broker.faults.delay("api_versions", milliseconds=20)
    with RawClient(broker.bootstrap) as client:
        client.send(ApiKey.API_VERSIONS, 3, {})
    with RawClient(broker.bootstrap) as client:
        broker.faults.delay("metadata", milliseconds=30)
        client.ask(ApiKey.METADATA, 9, {"topics": []})  # Answered after the other one was due.


def test_cleared_faults_do_not_strike(broker: EmbeddedBroker) -> None:
    broker.create_topic("orders")
    broker.faults.fail_next_write()
    broker.faults.drop_connection()
    broker.faults.clear()
    broker.produce("orders", ["x"])
    with RawClient(broker.bootstrap) as client:
        ping(client)
