"""The gateway next to Kafka's own protocol: many small writers, once as WebSockets, once as batches of one."""

import sys
from dataclasses import dataclass
from pathlib import Path

from anabranch.record.batch import BatchHeader, batch_spans, read_header
from bench.brokers import Broker, free_port
from bench.field import OURS
from bench.loads import Figures, Turn, cpu_of
from bench.loads.raw import TOPIC, Produce
from bench.programs import run_json


@dataclass(frozen=True)
class SocketWriters:
    """Each with one message under way, as fast as they are acknowledged."""

    writers: int = 100
    record_bytes: int = 100

    def run(self, turn: Turn) -> Figures:
        port = free_port()
        words = ("--http", f"127.0.0.1:{port}")
        with turn.field.fresh(OURS, words=words) as broker:
            broker.start()
            with broker.client() as client:
                client.create_topic(TOPIC, 1)
            with cpu_of(broker) as cpu:
                answer = run_json([*self._command(port), "--seconds", str(turn.seconds)])
            stored = stored_figures(broker, answer["records_with_warm_up"])
        return {
            "records_per_cpu_s": answer["records_with_warm_up"] / cpu.seconds,
            "records_per_s": answer["records"] / answer["seconds"],
            "p50_us": answer["p50_us"],
            "p99_us": answer["p99_us"],
            "generator_cores": answer["generator_cores"],
            **stored,
        }

    def _command(self, port: int) -> list[str]:
        command = [sys.executable, "-m", "bench.clients.socket_writers", "--port", str(port)]
        return [*command, "--topic", TOPIC, "--writers", str(self.writers), "--bytes", str(self.record_bytes)]


@dataclass(frozen=True)
class KafkaSingles:
    """The same with the raw generator: every record a produce request and a batch of its own."""

    connections: int = 100
    record_bytes: int = 100

    def run(self, turn: Turn) -> Figures:
        load = Produce(connections=self.connections, record_bytes=self.record_bytes, acks=-1)
        with turn.field.fresh(OURS) as broker:
            broker.start()
            with broker.client() as client:
                client.create_topic(TOPIC, 1)
            with cpu_of(broker) as cpu:
                answer = load.generate(broker, turn.seconds)
            stored = stored_figures(broker, answer["records"])
        return {
            "records_per_cpu_s": answer["records"] / cpu.seconds,
            "records_per_s": answer["records"] / answer["seconds"],
            "p50_us": answer["p50_us"],
            "p99_us": answer["p99_us"],
            **stored,
        }


@dataclass(frozen=True)
class SocketSubscribers:
    """All of them hear every record, in order."""

    subscribers: int = 1000
    records: int = 400

    def run(self, turn: Turn) -> Figures:
        port = free_port()
        with turn.field.fresh(OURS, words=("--http", f"127.0.0.1:{port}")) as broker:
            broker.start()
            with broker.client() as client:
                client.create_topic(TOPIC, 1)
            command = [sys.executable, "-m", "bench.clients.socket_subscribers", "--port", str(port)]
            command += ["--topic", TOPIC, "--subscribers", str(self.subscribers)]
            with cpu_of(broker) as cpu:
                answer = run_json([*command, "--records", str(self.records)])
        return {
            "records_per_cpu_s": answer["deliveries"] / cpu.seconds,
            "consumed_per_s": answer["deliveries"] / answer["seconds"],
            "generator_cores": answer["generator_cores"],
        }


def stored_figures(broker: Broker, acknowledged: int) -> Figures:
    """What is in the log's files: a node that drops records must not look fast."""
    headers = [header for path in _segments(broker) for header in _headers(path.read_bytes())]
    records = sum(header.record_count for header in headers)
    if records < acknowledged:
        raise RuntimeError(f"{acknowledged} records were acknowledged, and {records} are stored")
    size = sum(header.size_bytes for header in headers)
    return {"records_per_batch": records / len(headers), "bytes_per_record": size / records}


def _segments(broker: Broker) -> list[Path]:
    return sorted((broker.data_folder / f"{TOPIC}-0").glob("*.log"))


def _headers(segment: bytes) -> list[BatchHeader]:
    return [read_header(segment, start) for start, _ in batch_spans(segment)]
