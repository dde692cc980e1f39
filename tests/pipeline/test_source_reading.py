"""What a task does when the world has changed since it was planned; without Spark, which has no part in it."""

import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import confluent_kafka
import confluent_kafka.admin
import pytest

from anabranch.errors import (
    BrokerUnreachableError,
    DataLossError,
    PipelineError,
    ProtocolError,
    SegmentChangedError,
    UnknownTopicOrPartitionError,
)
from anabranch.pipeline.client.client import EARLIEST, LATEST, Client
from anabranch.pipeline.source.offsets import Progress
from anabranch.pipeline.source.options import Direct, ReaderOptions, reader_options
from anabranch.pipeline.source.plan import Range
from anabranch.pipeline.source.planner import Planner
from anabranch.pipeline.source.reading import read_range
from anabranch.record.columns.columns import schema_of
from anabranch.values import TopicPartition
from support.node_process import NodeProcess
from support.topics import make_topic, send

COUNT = 400


def options_of(node: NodeProcess, topic: str, **given: str) -> ReaderOptions:
    return reader_options({"bootstrap": node.bootstrap, "topic": topic, "direct": "never", **given})


def plan(options: ReaderOptions) -> Range:
    with closing(Planner(options)) as planner:
        (wanted,) = planner.batch_ranges()
    return wanted


def offsets(options: ReaderOptions, wanted: Range) -> list[int]:
    return list(each_offset(options, wanted))


def each_offset(options: ReaderOptions, wanted: Range) -> Iterator[int]:
    for batch in read_range(options, wanted, schema_of(["offset"])):
        yield from batch.column("offset").to_pylist()


def fill(node: NodeProcess, topic: str, **config: str) -> None:
    """A topic of 400 records in several segments."""
    make_topic(node.bootstrap, topic, segment_bytes="16384", **config)
    for start in range(0, COUNT, 50):
        send(node.bootstrap, topic, [(b"%d" % at, b"v" * 200) for at in range(start, start + 50)])


def delete_topic(node: NodeProcess, topic: str) -> None:
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": node.bootstrap})
    admin.delete_topics([topic])[topic].result(15)


def delete_records(node: NodeProcess, topic: str, upto: int) -> None:
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": node.bootstrap})
    place = confluent_kafka.TopicPartition(topic, 0, upto)
    next(iter(admin.delete_records([place]).values())).result(15)


# --- by the protocol -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_made_again", [False, True])
def test_a_topic_deleted_after_planning(node: NodeProcess, unique: str, is_made_again: bool) -> None:
    fill(node, unique)
    options = options_of(node, unique)
    wanted = plan(options)
    delete_topic(node, unique)
    if is_made_again:
        fill(node, unique)
    with pytest.raises(
        DataLossError, match=f"{unique}-0 was deleted, or made again, before offset 0 was read"
    ):
        offsets(options, wanted)
    assert offsets(replace(options, fail_on_data_loss=False), wanted) == []


def test_records_deleted_after_planning(node: NodeProcess, unique: str) -> None:
    fill(node, unique)
    options = options_of(node, unique)
    wanted = plan(options)
    delete_records(node, unique, 123)
    with pytest.raises(DataLossError, match="begins at offset 123 by now, and 0 was to be read"):
        offsets(options, wanted)
    assert offsets(replace(options, fail_on_data_loss=False), wanted) == list(range(123, COUNT))


@pytest.mark.parametrize("beyond", [0, 7])
def test_a_log_that_ends_before_the_range_does(
    node: NodeProcess, unique: str, beyond: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a crash under flush=os: planned with more than there is now."""
    monkeypatch.setattr("anabranch.pipeline.source.fetch.SILENCE_SECONDS_MAX", 0.5)
    fill(node, unique)
    options = options_of(node, unique)
    wanted = plan(options)._replace(start=COUNT - 5 + beyond * 10, end=COUNT + 100)
    with pytest.raises(
        DataLossError, match=f"{unique}-0 (has nothing from offset 400 on|ends at offset 400)"
    ):
        offsets(options, wanted)
    found = offsets(replace(options, fail_on_data_loss=False), wanted)
    assert found == list(range(wanted.start, COUNT))


def test_a_broker_killed_in_the_middle_of_a_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anabranch.pipeline.source.fetch.CHUNK_BYTES", 10_000)
    with NodeProcess(tmp_path) as node:
        fill(node, "orders")
        options = options_of(node, "orders")
        reading = each_offset(options, plan(options))
        found = [next(reading) for _ in range(60)]
        node.kill()
        node.start()
        found += reading
    assert found == list(range(COUNT))


def test_a_broker_that_does_not_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anabranch.pipeline.source.fetch.CHUNK_BYTES", 10_000)
    with NodeProcess(tmp_path) as node:
        fill(node, "orders")
        options = options_of(node, "orders", brokerTimeoutSeconds="0.5")
        reading = each_offset(options, plan(options))
        next(reading)
    with pytest.raises(BrokerUnreachableError, match=r"Nothing could be read from 127\.0\.0\.1:\d+ for 0 s"):
        list(reading)


# --- out of files --------------------------------------------------------------------------------------------------


def planned_with_files(node: NodeProcess, topic: str) -> tuple[ReaderOptions, Range]:
    options = options_of(node, topic, direct="require")
    wanted = plan(options)
    assert sum(stretch.file is not None for stretch in wanted.stretches) >= 3
    return options, wanted


def test_a_file_replaced_after_planning_comes_by_the_protocol(node: NodeProcess, unique: str) -> None:
    fill(node, unique)
    options, wanted = planned_with_files(node, unique)
    file = wanted.stretches[1].file
    assert file is not None
    copy = Path(file.path).with_suffix(".copy")
    copy.write_bytes(Path(file.path).read_bytes())
    os.replace(copy, file.path)
    with pytest.raises(SegmentChangedError, match="is not the file it was"):
        offsets(options, wanted)
    assert offsets(replace(options, direct=Direct.AUTO), wanted) == list(range(COUNT))


def test_files_that_retention_removed_after_planning_are_a_loss_told_by_the_broker(
    node: NodeProcess, unique: str
) -> None:
    fill(node, unique)
    options, wanted = planned_with_files(node, unique)
    third = wanted.stretches[2].start
    delete_records(node, unique, third)
    for stretch in wanted.stretches[:2]:
        assert stretch.file is not None
        Path(stretch.file.path).unlink(missing_ok=True)
    careless = replace(options, direct=Direct.AUTO, fail_on_data_loss=False)
    with pytest.raises(DataLossError, match=f"begins at offset {third} by now"):
        offsets(replace(careless, fail_on_data_loss=True), wanted)
    assert offsets(careless, wanted) == list(range(third, COUNT))


def test_a_listing_made_during_a_swap_hides_no_records(node: NodeProcess, unique: str) -> None:
    """The cleaner renames the later files first: a listing may see the first and not the second."""
    fill(node, unique)
    second = planned_with_files(node, unique)[1].stretches[1].file
    assert second is not None
    hidden = Path(second.path).with_suffix(".log.deleted")
    os.rename(second.path, hidden)
    try:
        options, wanted = planned_with_files(node, unique)
    finally:
        os.rename(hidden, second.path)
    assert second.path not in [stretch.file.path for stretch in wanted.stretches if stretch.file is not None]
    assert offsets(options, wanted) == list(range(COUNT))


def test_a_listing_that_sees_old_and_new_files_of_a_swap_gives_no_record_twice(
    node: NodeProcess, unique: str
) -> None:
    """The first file holds what the second does too, as between two steps of a swap."""
    fill(node, unique)
    options, wanted = planned_with_files(node, unique)
    first, second = wanted.stretches[0].file, wanted.stretches[1].file
    assert first is not None
    assert second is not None
    merged = Path(first.path).with_suffix(".merged")
    merged.write_bytes(Path(first.path).read_bytes() + Path(second.path).read_bytes())
    status = merged.stat()
    file = first._replace(
        path=str(merged), inode=status.st_ino, size_bytes=status.st_size, modified_ns=status.st_mtime_ns
    )
    stretches = (wanted.stretches[0]._replace(file=file), *wanted.stretches[1:])
    assert offsets(options, wanted._replace(stretches=stretches)) == list(range(COUNT))


def test_a_folder_out_of_reach_is_told_where_files_are_required(
    node: NodeProcess, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(node, unique)
    monkeypatch.setattr("anabranch.pipeline.source.segment_files.NODE", "nobody")
    with pytest.raises(PipelineError, match=f"direct=require: the files of {unique}-0 are out of reach"):
        plan(options_of(node, unique, direct="require"))
    options = options_of(node, unique, direct="auto")
    wanted = plan(options)
    assert [stretch.file for stretch in wanted.stretches] == [None]
    assert offsets(options, wanted) == list(range(COUNT))


# --- the client ----------------------------------------------------------------------------------------------------


def test_a_client_knows_topics_offsets_and_folders(node: NodeProcess, unique: str) -> None:
    fill(node, unique, cleanup_policy="compact")
    place = TopicPartition(unique, 0)
    with Client(node.bootstrap) as client:
        assert client.cluster([unique, "nobody"]).topics.keys() == {unique}
        assert client.offsets_at({place: EARLIEST}) == {place: 0}
        assert client.offsets_at({place: LATEST}) == {place: COUNT}
        assert client.offsets_at({place: 2**60}) == {place: -1}
        assert client.compacted_topics([unique]) == {unique}
        assert client.log_folders([unique]) == {place: str(node.data_folder)}
        with pytest.raises(UnknownTopicOrPartitionError):
            client.offsets_at({TopicPartition(unique, 9): LATEST})


def test_committed_offsets_are_found_again(node: NodeProcess, unique: str) -> None:
    make_topic(node.bootstrap, unique, partitions=2)
    places = [TopicPartition(unique, number) for number in range(2)]
    with Client(node.bootstrap) as client:
        client.commit_offsets(unique, {places[1]: 7})
        assert client.committed_offsets(unique, places) == {places[1]: 7}


def test_a_port_that_speaks_something_else_is_told_apart() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        answering = pool.submit(_answer_as_a_web_server, server)
        with pytest.raises(ProtocolError, match="is it a Kafka port"), Client(_name_of(server)) as client:
            client.cluster()
        answering.result(10)


def _name_of(server: socket.socket) -> str:
    host, port = server.getsockname()
    return f"{host}:{port}"


def _answer_as_a_web_server(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        connection.recv(1000)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def test_a_wrong_address_is_told(node: NodeProcess) -> None:
    with pytest.raises(BrokerUnreachableError, match="Is the node up, and is this its address"):
        Client("127.0.0.1:9", patience_seconds=0.2).cluster()


# --- planning for streams -------------------------------------------------------------------------------------------


def test_a_log_that_was_cut_back_is_a_loss(node: NodeProcess, unique: str) -> None:
    fill(node, unique)
    options = options_of(node, unique)
    with closing(Planner(options)) as planner:
        ahead = Progress({TopicPartition(unique, 0): COUNT + 50})
        with pytest.raises(
            DataLossError, match="ends at offset 400, and 450 was to be read: it was cut back"
        ):
            planner.latest(ahead, None, None)
    with closing(Planner(replace(options, fail_on_data_loss=False))) as planner:
        assert planner.latest(ahead, None, None).offsets == {TopicPartition(unique, 0): COUNT}
        assert planner.stream_ranges(Progress({TopicPartition(unique, 0): 0}), ahead)[0].end == COUNT


def test_available_now_does_not_wait_for_what_comes_after_its_target(node: NodeProcess, unique: str) -> None:
    fill(node, unique)
    place = TopicPartition(unique, 0)
    with closing(Planner(options_of(node, unique))) as planner:
        target = planner.look(must_exist=False).ends
        fill_more = [(None, b"v")] * 10
        send(node.bootstrap, unique, fill_more)
        first = planner.latest(Progress({place: 0}), target, 300)
        assert first.offsets == {place: 300}
        second = planner.latest(first, target, 300)
        assert second.offsets == {place: COUNT}
        assert planner.latest(second, target, 300) == second
