"""A topic that has left mode branch on a real node: commands, a consumer and the pipeline count its records, and go on
with the next one, although billions of offsets lie between them."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from anabranch.pipeline.source.offsets import Progress
from anabranch.pipeline.source.options import ReaderOptions, reader_options
from anabranch.pipeline.source.planner import Planner
from anabranch.pipeline.source.reading import read_range
from anabranch.record.columns.columns import schema_of
from anabranch.values import TopicPartition
from support.node_process import NodeProcess
from support.topics import make_topic, send
from support.waiting import wait_until

TOPIC = "orders"
PLACE = TopicPartition(TOPIC, 0)
RUN_S_MAX = 60
LANE = 2**32
COUNTS = (40, 30)
"""How many records were written before the restart, and after it: to a lane each."""
RECORDS = sum(COUNTS)
SETTINGS = {"peer.listen": "127.0.0.1:0", "allow.unauthenticated": "true", "log.retention.ms": "-1"}


class Left:
    """The node, and commands that are run on it."""

    def __init__(self, node: NodeProcess) -> None:
        self.node = node
        self.lane = 0
        """Where the second lane begins. On a busy machine a reign may end before anything is written to its lane, and
        then this is the lane after that."""

    @property
    def end(self) -> int:
        return self.lane + COUNTS[1]

    @property
    def expected(self) -> list[int]:
        return [*range(COUNTS[0]), *range(self.lane, self.end)]

    def run(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        command = [
            sys.executable,
            "-m",
            "anabranch",
            *map(str, arguments),
            "--bootstrap",
            self.node.bootstrap,
        ]
        return subprocess.run(command, capture_output=True, text=True, timeout=RUN_S_MAX)

    def __call__(self, *arguments: object) -> str:
        result = self.run(*arguments)
        assert result.returncode == 0, result.stderr
        return result.stdout

    def json(self, *arguments: object) -> Any:
        return json.loads(self(*arguments, "--format", "json"))

    def fill(self, part: int) -> None:
        for start in range(0, COUNTS[part], 5):
            records = [(None, b"%d/%d " % (part, start + number) + b"x" * 400) for number in range(5)]
            send(self.node.bootstrap, TOPIC, records)
        consumer = confluent_kafka.Consumer({"bootstrap.servers": self.node.bootstrap, "group.id": "none"})
        with closing(consumer):
            _, end = consumer.get_watermark_offsets(confluent_kafka.TopicPartition(TOPIC, 0), RUN_S_MAX)
        self.lane = end - COUNTS[part]
        assert self.lane % LANE == 0

    def change(self, mode: str) -> None:
        admin = AdminClient({"bootstrap.servers": self.node.bootstrap})
        entry = ConfigEntry("anabranch.mode", mode, incremental_operation=AlterConfigOpType.SET)
        wanted = ConfigResource(ConfigResource.Type.TOPIC, TOPIC, incremental_configs=[entry])
        admin.incremental_alter_configs([wanted])[wanted].result(RUN_S_MAX)
        topic = ConfigResource(ConfigResource.Type.TOPIC, TOPIC)

        def is_done() -> bool:
            return "anabranch.mode.changing" not in admin.describe_configs([topic])[topic].result(RUN_S_MAX)

        wait_until(is_done, f"mode {mode}")
        with closing(Planner(self.options())) as planner:
            planner.look(must_exist=True)  # It waits until somebody leads.

    def commit(self, group: str, offset: int) -> None:
        consumer = confluent_kafka.Consumer({"bootstrap.servers": self.node.bootstrap, "group.id": group})
        with closing(consumer):
            place = confluent_kafka.TopicPartition(TOPIC, 0, offset)
            (told,) = consumer.commit(offsets=[place], asynchronous=False)
            assert told.error is None

    def options(self, **given: str) -> ReaderOptions:
        return reader_options({"bootstrap": self.node.bootstrap, "topic": TOPIC, **given})

    def read(self, **given: str) -> list[int]:
        """The offsets that a job finds; all of it is one task."""
        options = self.options(**given)
        with closing(Planner(options)) as planner:
            (task,) = planner.batch_ranges()
        assert task.size == RECORDS
        return [
            offset
            for batch in read_range(options, task, schema_of(["offset"]))
            for offset in batch.column("offset").to_pylist()
        ]

    def triggers(self, records_max: int) -> list[int]:
        """Where each trigger of a stream ends that may take so many records."""
        with closing(Planner(self.options(startingOffsets="earliest"))) as planner:
            at, ends = planner.initial(), []
            while not ends or ends[-1] != at.offsets[PLACE]:
                ends.append(at.offsets[PLACE])
                at = planner.latest(Progress(at.offsets, at.topic_ids), None, records_max)
        return ends[1:]


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Left]:
    folder = tmp_path_factory.mktemp("left")
    with NodeProcess(folder, {**SETTINGS, "object.store": f"file://{folder}/store"}) as node:
        left = Left(node)
        make_topic(node.bootstrap, TOPIC, anabranch_mode="branch", segment_bytes="4096")
        left.fill(0)
        node.stop()
        node.start()
        left.fill(1)
        left.commit("g", left.end)
        left.change("solo")
        yield left


def test_commands_count_records_and_not_offsets(left: Left) -> None:
    (row,) = left.json("topic", "describe", TOPIC)["partitions"]
    assert (row["end"], row["records_max"]) == (left.end, RECORDS)
    (row,) = left.json("group", "describe", "g")["partitions"]
    assert (row["committed"], row["end"], row["lag"]) == (left.end, left.end, 0)
    assert [line.split()[0] for line in left("consume", TOPIC, "--from", -32).splitlines()[:3]] == [
        "0/38",
        "0/39",
        "1/0",
    ]
    refused = left.run("branch", "show", TOPIC)
    assert (refused.returncode, "is not in mode branch" in refused.stderr) == (1, True)


@pytest.mark.parametrize("way", ["never", "auto"])
def test_a_job_reads_all_of_it_whichever_way_it_comes(left: Left, way: str) -> None:
    assert left.read(direct=way) == left.expected


def test_sealed_files_are_read_without_the_broker(left: Left) -> None:
    with closing(Planner(left.options())) as planner:
        (task,) = planner.batch_ranges()
    files = [Path(each.file.path) for each in task.stretches if each.file is not None]
    assert {file.parent.name for file in files} == {f"{TOPIC}-0"}
    assert all(each.file is not None for each in task.stretches), "all of it was sealed when it left"


def test_a_stream_takes_as_many_records_as_it_may(left: Left) -> None:
    assert left.triggers(30) == [30, left.lane + 20, left.end]


def test_it_is_the_same_in_the_object_store_and_whoever_was_at_the_end_goes_on_there(left: Left) -> None:
    left.change("object")
    (row,) = left.json("topic", "describe", TOPIC)["partitions"]
    assert (row["end"], row["records_max"]) == (left.end, RECORDS)
    assert left.read() == left.expected
    assert left.triggers(30) == [30, left.lane + 20, left.end]
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": left.node.bootstrap, "group.id": "other", "auto.offset.reset": "error"}
    )
    with closing(consumer):
        consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, left.end)])
        assert consumer.poll(0.5) is None
        send(left.node.bootstrap, TOPIC, [(None, b"next")])
        message = wait_until(lambda: consumer.poll(1), "the next record")
        assert (message.error(), message.value()) == (None, b"next")
        assert message.offset() > left.end + LANE
    (row,) = left.json("group", "describe", "g")["partitions"]
    assert row["lag"] == 1
