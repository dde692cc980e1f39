"""One run of chaos: a cluster, load, faults by seed, calm, and what the history says of it.

    report = ChaosRun(folder, brokers=3, seed=7, seconds=600).run()

The report is plain data for JSON; `violations` in it are those of the history checker, and `liveness`, which says what
did not work again once the faults had stopped.
"""

import random
import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from anabranch.testing import ClusterProcesses
from chaos.cluster_faults import Faults, FullDisk, PacketLoss
from chaos.cluster_load import QUIET, ClusterLoad, final_reads, now_ms
from chaos.history import History, Outcome, check, counts, report

TOPIC = "chaos"
FAULT_EVERY_SECONDS = 8.0
"""At least one fault in so many seconds."""
CALM_SECONDS_MAX = 60.0


@dataclass(slots=True)
class ChaosRun:
    folder: Path
    brokers: int = 3
    seed: int = 0
    seconds: float = 600.0
    partitions: int = 6
    producers: int = 3
    consumers: int = 2
    per_second: int = 200
    settings: dict[str, object] = field(default_factory=dict)
    nft: str | None = None
    """The program that can drop packets; only in a network namespace of our own."""
    may_mount: bool = False
    say: Callable[[str], None] = lambda line: None
    _began_ms: int = 0

    def run(self) -> dict[str, Any]:
        cluster = ClusterProcesses(self.folder, brokers=self.brokers, settings=self.settings)
        disk = FullDisk(self.brokers - 1, cluster.layout.places[-1].folder) if self.may_mount else None
        with cluster:
            make_topic(cluster.bootstrap, TOPIC, self.partitions, min(3, self.brokers))
            load = ClusterLoad(
                cluster.bootstrap,
                TOPIC,
                self.partitions,
                producers=self.producers,
                consumers=self.consumers,
                per_second=self.per_second,
            )
            faults = Faults(
                cluster,
                TOPIC,
                self.partitions,
                random.Random(self.seed),
                self._tell,
                self._loss(cluster),
                disk,
            )
            self._began_ms = now_ms()
            load.start()
            try:
                self._strike(faults, load)
                late = self._calm_down(cluster)
            finally:
                load.stop()
            history = load.history(final_reads(cluster.bootstrap, TOPIC, self.partitions))
        if disk is not None:
            disk.close()
        return self._report(faults, load, history, late)

    def _tell(self, line: str) -> None:
        self.say(f"{(now_ms() - self._began_ms) / 1000:7.1f} s  {line}")

    def _loss(self, cluster: ClusterProcesses) -> PacketLoss | None:
        if self.nft is None:
            return None
        ports = [int(place.peer.rpartition(":")[2]) for place in cluster.layout.places]
        return PacketLoss(ports, self.nft)

    def _strike(self, faults: Faults, load: ClusterLoad) -> None:
        wait_until(lambda: load.acknowledged_count > 0, "a first record is acknowledged", CALM_SECONDS_MAX)
        end = time.monotonic() + self.seconds
        while time.monotonic() < end:
            began = time.monotonic()
            faults.strike()
            pause = faults.rng.uniform(0.5, 2.5)
            time.sleep(min(pause, max(0.0, FAULT_EVERY_SECONDS - (time.monotonic() - began))))

    def _calm_down(self, cluster: ClusterProcesses) -> list[str]:
        """Heal everything; what does not work again in time."""
        cluster.recover()
        self._tell("calm: every broker is up, every link whole")
        late = []
        for partition in range(self.partitions):
            if not can_write(cluster.bootstrap, TOPIC, partition):
                late.append(
                    f"partition {partition} takes no write {CALM_SECONDS_MAX:.0f} s after the last fault"
                )
        return late

    def _report(self, faults: Faults, load: ClusterLoad, history: History, late: list[str]) -> dict[str, Any]:
        history.final = [read for read in history.final if not read.value.startswith(PROBE)]
        history.reads = [read for read in history.reads if not read.value.startswith(PROBE)]
        violations = check(history)
        outcomes = Counter(sent.outcome for sent in history.sends)
        return {
            "seed": self.seed,
            "brokers": self.brokers,
            "seconds": self.seconds,
            "faults": dict(Counter(fault.kind for fault in faults.done)),
            "fault_count": len(faults.done),
            "left_out": sorted({"packet loss", "full disk"} - faults.kinds().keys()),
            "sent": len(history.sends),
            "acknowledged": outcomes[Outcome.ACKNOWLEDGED],
            "unknown": outcomes[Outcome.UNKNOWN],
            "failed": outcomes[Outcome.FAILED],
            "read_by_group": len(history.reads),
            "read_at_the_end": len(history.final),
            "watermarks_seen": len(history.watermarks),
            "producers_broken": load.producer_restarts,
            "client_errors": load.errors(),
            "unavailable_ms": unavailable_ms(faults, load),
            "violations": counts(violations),
            "examples": "" if not violations else report(violations),
            "liveness": late,
        }


PROBE = b"probe-"


def can_write(bootstrap: str, topic: str, partition: int) -> bool:
    """Whether a new producer is acknowledged within the bound."""
    producer = confluent_kafka.Producer(
        {
            **QUIET,
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "message.timeout.ms": int(CALM_SECONDS_MAX * 1000),
        }
    )
    failed: list[object] = []
    value = PROBE + b"%d" % partition
    producer.produce(
        topic,
        value,
        partition=partition,
        on_delivery=lambda error, _: failed.append(error) if error else None,
    )
    return producer.flush(CALM_SECONDS_MAX + 5) == 0 and not failed


def unavailable_ms(faults: Faults, load: ClusterLoad) -> dict[str, Any]:
    """How long the partitions of a killed leader took no new record, by the worst of them, for each kill."""
    worst: list[int] = []
    never = 0
    for fault in faults.done:
        if not fault.kind.startswith("kill") or not fault.led:
            continue
        silences = [load.silence_ms(partition, fault.at_ms) for partition in fault.led]
        if None in silences:
            never += 1
        else:
            worst.append(max(silence for silence in silences if silence is not None))
    return {
        "kills": len(worst) + never,
        "median": round(statistics.median(worst)) if worst else None,
        "max": max(worst, default=None),
        "never": never,
    }


def make_topic(bootstrap: str, topic: str, partitions: int, replicas: int) -> None:
    """Tries until so many brokers have joined that the copies have a place."""
    admin = AdminClient({**QUIET, "bootstrap.servers": bootstrap})
    deadline = time.monotonic() + CALM_SECONDS_MAX
    while True:
        future = admin.create_topics([NewTopic(topic, partitions, replicas)])[topic]
        try:
            future.result()
            return
        except confluent_kafka.KafkaException as error:
            if error.args[0].code() == confluent_kafka.KafkaError.TOPIC_ALREADY_EXISTS:
                return
            if time.monotonic() > deadline:
                raise
        time.sleep(0.2)


def wait_until(condition: Callable[[], bool], what: str, seconds_max: float) -> None:
    deadline = time.monotonic() + seconds_max
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"It did not happen within {seconds_max:.0f} s that {what}.")
        time.sleep(0.05)


def is_sound(result: dict[str, Any]) -> bool:
    """Nothing was violated, and there was something to violate."""
    return not result["violations"] and not result["liveness"] and result["acknowledged"] > 0
