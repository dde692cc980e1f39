"""kill -9 of the broker that merges, again and again while everybody writes: nothing acknowledged is lost or doubled,
and in the end the store holds what the table names and nothing else."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from anabranch.errors import AnabranchError
from anabranch.pipeline.client.client import Client
from anabranch.pipeline.jobs.merge import plan_merges, run_merge
from anabranch.pipeline.source.coordinates import coordinates
from anabranch.record.batch import batch_spans
from anabranch.record.records import records_of
from anabranch.testing.cluster_processes import ClusterProcesses
from anabranch.values import TopicPartition
from support.raw_client import ClosedByBroker, RawClient, batch_of
from support.waiting import wait_until

TOPIC = "orders"
PARTITIONS = 2
KILLS = 3
SETTINGS = {
    "object.gather.ms": "10",
    "object.merge.bytes": "10000",
    "object.collect.ms": "3000",
    "object.snapshot.ms": "500",
    "log.retention.ms": "-1",
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcesses]:
    folder = tmp_path / "cluster"
    folder.mkdir()
    settings = {**SETTINGS, "object.store": f"file://{tmp_path}/store"}
    with ClusterProcesses(folder, settings=settings) as made:
        with RawClient(made.bootstrap.split(",")[0]) as client:
            client.create_topic(TOPIC, PARTITIONS, anabranch_mode="object")
        yield made


class Writer(threading.Thread):
    """Sends every value once: what was not acknowledged may be there or not."""

    def __init__(self, number: int, address: str, is_over: threading.Event) -> None:
        super().__init__(name=f"writer-{number}")
        self._address = address
        self._number = number
        self._is_over = is_over
        self.acknowledged: list[tuple[int, bytes]] = []
        self.sent: set[bytes] = set()

    def run(self) -> None:
        count = 0
        while not self._is_over.is_set():
            try:
                with RawClient(self._address) as client:
                    while not self._is_over.is_set():
                        self._write(client, count)
                        count += 1
            except (OSError, ClosedByBroker):
                count += 1
                time.sleep(0.1)  # Its broker is dead for a while.

    def _write(self, client: RawClient, count: int) -> None:
        partition = count % PARTITIONS
        value = b"%d-%d " % (self._number, count) * 10
        self.sent.add(value)
        if client.produce(TOPIC, partition, batch_of(value))["error_code"] == 0:
            self.acknowledged.append((partition, value))


def merge_by_jobs(bootstrap: str, is_over: threading.Event) -> None:
    """What a job does, over and over; brokers die under it."""
    while not is_over.wait(0.7):
        try:
            for task in plan_merges(bootstrap, [TOPIC]):
                run_merge(task)
        except (AnabranchError, OSError):
            continue


def read(cluster: ClusterProcesses, partition: int) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    with Client(cluster.bootstrap) as client:
        host, port = client.cluster([TOPIC]).topics[TOPIC].leaders[partition]
    with RawClient(f"{host}:{port}") as raw:
        end = raw.end_offset(TOPIC, partition)
        while not found or found[-1][0] < end - 1:
            offset = found[-1][0] + 1 if found else 0
            data = raw.fetch(TOPIC, partition, offset)["records"] or b""
            for start, stop in batch_spans(data):
                batch = records_of(bytes(data[start:stop]))
                found += [(each.offset, each.value or b"") for each in batch if each.offset >= offset]
    return found


def named(cluster: ClusterProcesses) -> set[str]:
    with Client(cluster.bootstrap) as client:
        topic_id = client.cluster([TOPIC]).topics[TOPIC].id
        return {
            row.object_id.name
            for number in range(PARTITIONS)
            for row in coordinates(client, TopicPartition(TOPIC, number), topic_id).rows
        }


def stored(folder: Path) -> set[str]:
    store = folder / "store"
    return {
        str(path.relative_to(store)) for kind in ("segments", "merged") for path in (store / kind).glob("*")
    }


def test_the_merging_broker_is_killed_again_and_again(cluster: ClusterProcesses, tmp_path: Path) -> None:
    is_over = threading.Event()
    writers = [
        Writer(number, address, is_over) for number, address in enumerate(cluster.bootstrap.split(","))
    ]
    job = threading.Thread(target=merge_by_jobs, args=(cluster.bootstrap, is_over))
    for thread in (*writers, job):
        thread.start()
    try:
        for _ in range(KILLS):
            time.sleep(3.0)
            leader = cluster.controller()
            cluster.kill(leader)
            time.sleep(1.0)
            cluster.restart(leader)
    finally:
        is_over.set()
        for thread in (*writers, job):
            thread.join()
    assert sum(len(writer.acknowledged) for writer in writers) > 100
    for partition in range(PARTITIONS):
        records = read(cluster, partition)
        assert [offset for offset, _ in records] == list(range(len(records)))
        counts = Counter(value for _, value in records)
        acknowledged = {
            value for writer in writers for place, value in writer.acknowledged if place == partition
        }
        assert acknowledged <= set(counts), "acknowledged and lost"
        assert max(counts.values()) == 1, "sent once and there twice"
        assert set(counts) <= set().union(*(writer.sent for writer in writers))
    assert any(name.startswith("merged/") for name in named(cluster)), "nothing was merged at all"
    wait_until(lambda: stored(tmp_path) == named(cluster), "everything that nobody names to be gone", 60.0)
