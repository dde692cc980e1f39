"""Loads under flush=always: what safety against a power cut costs. Ours only, on a node of its own."""

from dataclasses import dataclass

from bench.loads import Figures, Turn, cpu_of
from bench.loads.clients import batched
from bench.loads.raw import TOPIC, run_load
from bench.programs import load_program, run_json

SYNCS = 2000


@dataclass(frozen=True)
class Batched:
    """One librdkafka producer with its defaults: acks=all, and batches as large as they come."""

    records: int = 300_000
    record_bytes: int = 1024
    partitions: int = 4

    def run(self, turn: Turn) -> Figures:
        with turn.field.fresh(turn.side, flush="always") as broker:
            broker.start()
            return {"records_per_s": batched(broker, self.records, self.record_bytes, self.partitions)}


@dataclass(frozen=True)
class Single:
    """One producer that waits for each record, next to the same bytes written and synced without any broker."""

    record_bytes: int = 100

    def run(self, turn: Turn) -> Figures:
        with turn.field.fresh(turn.side, flush="always") as broker:
            broker.start()
            with broker.topics([TOPIC]):
                run_load("produce", broker, acks=-1, seconds=0.5)
                disk = self._disk(str(broker.data_folder / "sync-measured-alone"))
                with cpu_of(broker) as cpu:
                    answer = run_load(
                        "produce", broker, acks=-1, record_bytes=self.record_bytes, seconds=turn.seconds
                    )
        return {
            "p50_us": answer["p50_us"],
            "p99_us": answer["p99_us"],
            "disk_p50_us": disk,
            "times_disk": answer["p50_us"] / disk,
            "cpu_us_per_request": cpu.seconds / answer["requests"] * 1e6,
        }

    def _disk(self, path: str) -> float:
        words = ["sync", "--file", path, "--requests", str(SYNCS), "--record-bytes", str(self.record_bytes)]
        p50_us: float = run_json([str(load_program()), *words])["p50_us"]
        return p50_us
