"""A broker's life: how soon it is there, how much memory it needs, how soon it is back after kill -9."""

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from anabranch.wire.api_keys import ApiKey
from bench.brokers import Broker
from bench.loads import Figures, Turn
from bench.loads.raw import FETCH_RECORD_BYTES, FETCH_RECORDS, SECONDS_MAX, TOPIC, run_load
from bench.measure import resident_mb
from support.raw_client import RawClient, batch_of

SETTLE_S = 1.0
LOG_BYTES = 100 * 2**20
FIRST_PRODUCE_S_MAX = 60.0


def first_produce(broker: Broker) -> None:
    """A new topic and one record, acknowledged with acks=all, on a broker that may be barely there."""
    with broker.client() as client:
        client.create_topic(TOPIC)
        deadline = time.monotonic() + FIRST_PRODUCE_S_MAX
        while (code := client.produce(TOPIC, 0, batch_of(b"x" * 100))["error_code"]) != 0:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{broker.name} answers a first produce with {code}")
            time.sleep(0.002)


@dataclass(frozen=True)
class Start:
    """From starting the process to the first acknowledged record, on an empty folder; then its memory."""

    def run(self, turn: Turn) -> Figures:
        with turn.field.fresh(turn.side) as broker:
            started = time.monotonic()
            broker.start()
            first_produce(broker)
            seconds = time.monotonic() - started
            time.sleep(SETTLE_S)
            return {"start_s": seconds, "idle_mb": resident_mb(broker.pid)}


@dataclass(frozen=True)
class LoadedMemory:
    """Memory of a new process after small requests on many connections, large ones, and fetches."""

    seconds: float = 2.0

    def run(self, turn: Turn) -> Figures:
        with turn.field.fresh(turn.side) as broker:
            broker.start()
            with broker.topics([TOPIC]):
                run_load("produce", broker, connections=100, in_flight=5, seconds=self.seconds)
                large = {"records": FETCH_RECORDS, "record_bytes": FETCH_RECORD_BYTES}
                run_load("produce", broker, connections=4, requests=500, seconds=SECONDS_MAX, **large)
                run_load("fetch", broker, connections=10, seconds=self.seconds)
                return {"loaded_mb": resident_mb(broker.pid)}


@dataclass(frozen=True)
class Fixture:
    """The broker inside a test process, as the pytest plugin starts it."""

    def run(self, turn: Turn) -> Figures:
        if turn.is_first:
            self._ready_seconds()  # It pays for imports that a test session pays once.
        return {"ready_s": self._ready_seconds()}

    def _ready_seconds(self) -> float:
        from anabranch.testing import EmbeddedBroker

        with tempfile.TemporaryDirectory() as folder:
            started = time.monotonic()
            with EmbeddedBroker(Path(folder)):
                return time.monotonic() - started


@dataclass(frozen=True)
class Restart:
    """Back after kill -9 with 100 MB of small batches in one partition."""

    records_per_batch: int

    def run(self, turn: Turn) -> Figures:
        with turn.field.fresh(turn.side) as broker:
            broker.start()
            with broker.client() as client:
                client.create_topic(TOPIC)
            batch_bytes = len(batch_of(*(b"x" * 100 for _ in range(self.records_per_batch))))
            run_load(
                "produce",
                broker,
                records=self.records_per_batch,
                connections=10,
                in_flight=5,
                requests=LOG_BYTES // batch_bytes,
                seconds=10 * SECONDS_MAX,
            )
            return {"restart_s": restart_seconds(broker)}


def restart_seconds(broker: Broker) -> float:
    """From starting a killed broker again to its knowing where the partition ends."""
    with broker.client() as client:
        end = client.end_offset(TOPIC)
    broker.kill()
    started = time.monotonic()
    broker.start()
    _wait_for_end(broker, end)
    return time.monotonic() - started


def _wait_for_end(broker: Broker, end: int) -> None:
    asked = {"partition_index": 0, "timestamp": -1}
    body = {"replica_id": -1, "topics": [{"name": TOPIC, "partitions": [asked]}]}
    deadline = time.monotonic() + 10 * SECONDS_MAX
    with broker.client() as client:
        while True:
            row = _only_row(client, body)
            if row["error_code"] == 0:
                if row["offset"] != end:
                    raise RuntimeError(f"{broker.name} lost records: {row['offset']} of {end} are left")
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"{broker.name} does not say where {TOPIC} ends: {row}")
            time.sleep(0.005)


def _only_row(client: RawClient, body: dict[str, object]) -> dict[str, int]:
    row: dict[str, int] = client.ask(ApiKey.LIST_OFFSETS, 7, body)["topics"][0]["partitions"][0]
    return row
