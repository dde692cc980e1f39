"""What a log costs as it grows: appends, fetches at its end and in its middle, and a restart after kill -9."""

import shutil
from dataclasses import dataclass

from bench.brokers import Broker
from bench.loads import Figures, Turn, cpu_of
from bench.loads.life import restart_seconds
from bench.loads.raw import TOPIC, run_load, warm_up
from bench.programs import Unavailable

GB = 10**9
MEASURED_APPEND = GB // 2
ROOM_TIMES = 1.5  # Kafka's index files are sparse, but both sides want some air.
RECORDS, RECORD_BYTES = 100, 1000
BATCH_BYTES = RECORDS * (RECORD_BYTES + 9) + 61
SMALL_FETCH_BYTES = 64 * 1024
FILL_S_MAX = 600.0
FETCH_WARM_UP_S = 3.0


@dataclass(frozen=True)
class LogGrowth:
    """A partition filled to `gigabytes`; the last half of a GB is the append that is measured."""

    gigabytes: int

    def run(self, turn: Turn) -> Figures:
        self._check_room(turn)
        with turn.field.fresh(turn.side) as broker:
            broker.start()
            warm_up(broker)
            with broker.client() as client:
                client.create_topic(TOPIC)
            self._append(broker, self.gigabytes * GB - MEASURED_APPEND)
            figures = self._append(broker, MEASURED_APPEND)
            with broker.client() as client:
                end = client.end_offset(TOPIC)
            figures |= self._fetch(broker, "end", end - RECORDS * 100, end - RECORDS, turn.seconds)
            figures |= self._fetch(broker, "middle", end // 4, end * 3 // 4, turn.seconds)
            return {**figures, "restart_s": restart_seconds(broker)}

    def _check_room(self, turn: Turn) -> None:
        turn.field.folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(turn.field.folder).free
        wanted = ROOM_TIMES * self.gigabytes * GB
        if free < wanted:
            raise Unavailable(
                f"{wanted / GB:.1f} GB are wanted in {turn.field.folder} and {free / GB:.1f} GB are free"
            )

    def _append(self, broker: Broker, amount: int) -> Figures:
        with cpu_of(broker) as cpu:
            answer = run_load(
                "produce",
                broker,
                connections=4,
                records=RECORDS,
                record_bytes=RECORD_BYTES,
                requests=amount // BATCH_BYTES,
                seconds=FILL_S_MAX,
            )
        return {
            "append_mb_per_s": answer["bytes"] / answer["seconds"] / 1e6,
            "append_cpu_s_per_gb": cpu.seconds / answer["bytes"] * GB,
        }

    def _fetch(self, broker: Broker, where: str, first: int, last: int, seconds: float) -> Figures:
        options = {"from": first, "to": last, "fetch_bytes": SMALL_FETCH_BYTES}
        run_load("fetch", broker, "--random", seconds=FETCH_WARM_UP_S, **options)
        with cpu_of(broker) as cpu:
            answer = run_load("fetch", broker, "--random", seconds=seconds, **options)
        return {
            f"{where}_fetch_p50_us": answer["p50_us"],
            f"{where}_fetch_cpu_us": cpu.seconds / answer["requests"] * 1e6,
        }
