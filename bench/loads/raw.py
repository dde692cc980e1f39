"""Loads of the raw generator: produce, fetch, and latency at a fixed rate."""

from dataclasses import dataclass
from typing import Any, Protocol

from bench.brokers import Broker
from bench.loads import Cpu, Figures, Turn, cpu_of
from bench.programs import load_program, run_json

TOPIC = "bench"
WARM_UP_S = 10.0
OPENING_WRITES, OPENING_BYTES = 3, 5000
SECONDS_MAX = 60.0  # For loads that end with a number of requests.


def run_load(mode: str, broker: Broker, *flags: str, **options: float | str) -> dict[str, Any]:
    """One run of the generator; an error of the broker raises."""
    answer = run_unchecked(mode, broker, *flags, **options)
    if answer["errors"]:
        raise RuntimeError(f"{broker.name} answered {answer['errors']} of {answer['requests']} with an error")
    return answer


def run_unchecked(mode: str, broker: Broker, *flags: str, **options: float | str) -> dict[str, Any]:
    words = [str(load_program()), mode, "--port", str(broker.port)]
    for name, value in {"topic": TOPIC, **options}.items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    return run_json([*words, *flags])


class RawLoad(Protocol):
    """What can be kept up for any time: what `make profile` looks into."""

    @property
    def partitions(self) -> int: ...

    def fill(self, broker: Broker) -> None: ...

    def sustain(self, broker: Broker, seconds: float) -> dict[str, Any]: ...


def check_kept(broker: Broker, partitions: int, records: int) -> None:
    """What was acknowledged is in the log: a broker that drops records must not look fast."""
    with broker.client() as client:
        kept = sum(client.end_offset(TOPIC, partition) for partition in range(partitions))
    if kept != records:
        raise RuntimeError(f"{broker.name} acknowledged {records} records and kept {kept}")


def throughput_figures(answer: dict[str, Any], cpu: Cpu) -> Figures:
    return {
        "cpu_us_per_request": cpu.seconds / answer["requests"] * 1e6,
        "requests_per_s": answer["requests"] / answer["seconds"],
        "mb_per_s": answer["bytes"] / answer["seconds"] / 1e6,
        "cpu_s_per_gb": cpu.seconds / answer["bytes"] * 1e9,
        "p50_us": answer["p50_us"],
        "p99_us": answer["p99_us"],
    }


@dataclass(frozen=True)
class Produce:
    """Batches of `records` x `record_bytes`, over all partitions in turn.

    With `requests` a round is a fixed amount of work instead of a fixed time, so that both sides write equally
    many bytes: what the machine takes for fresh pages then weighs on both alike.
    """

    connections: int = 1
    in_flight: int = 1
    records: int = 1
    record_bytes: int = 100
    partitions: int = 1
    acks: int = 1
    requests: int = 0

    def run(self, turn: Turn) -> Figures:
        broker = turn.broker()
        with broker.topics([TOPIC], self.partitions):
            self.warm_up(turn, broker)
            with cpu_of(broker) as cpu:
                answer = self.generate(broker, turn.seconds)
        return throughput_figures(answer, cpu)

    def warm_up(self, turn: Turn, broker: Broker) -> None:
        if self.partitions > 1:
            self.generate(
                broker, SECONDS_MAX, 2 * self.partitions
            )  # The first write to each opens its files.
        requests = self.requests if turn.is_first else self.requests // 10
        self.generate(broker, turn.warm_up_seconds, requests)

    def fill(self, broker: Broker) -> None:
        """Nothing has to be there."""

    def sustain(self, broker: Broker, seconds: float) -> dict[str, Any]:
        return self.generate(broker, seconds, 0)

    def generate(self, broker: Broker, seconds: float, requests: int | None = None) -> dict[str, Any]:
        count = self.requests if requests is None else requests
        return run_load(
            "produce",
            broker,
            connections=self.connections,
            in_flight=self.in_flight,
            records=self.records,
            record_bytes=self.record_bytes,
            partitions=self.partitions,
            acks=self.acks,
            requests=count,
            seconds=SECONDS_MAX if count else seconds,
        )


def open_partitions(broker: Broker, topics: int, partitions: int) -> int:
    """Write to each partition until it has opened its files and begun its indexes; how many records that took.

    Both brokers do this late: at the first write, and after the first 4 KB. It can cost milliseconds, once.
    """
    answer = run_load(
        "produce",
        broker,
        topics=topics,
        partitions=partitions,
        connections=4,
        record_bytes=OPENING_BYTES,
        requests=OPENING_WRITES * topics * partitions,
        seconds=10 * SECONDS_MAX,
    )
    records: int = answer["records"]
    return records


def warm_up(broker: Broker) -> None:
    """For a broker that has just started: a JVM compiles what it runs often, and takes its time to find out."""
    with broker.topics([TOPIC]):
        Produce(connections=10, in_flight=5).generate(broker, WARM_UP_S)


@dataclass(frozen=True)
class Fetch:
    """Reads a partition of `fill_requests` x 1 MB from its start to its end, again and again."""

    connections: int = 1
    fill_requests: int = 400
    partitions: int = 1

    def run(self, turn: Turn) -> Figures:
        broker = turn.broker()
        with broker.topics([TOPIC]):
            self.fill(broker)
            self.sustain(broker, turn.warm_up_seconds)
            with cpu_of(broker) as cpu:
                answer = self.sustain(broker, turn.seconds)
        return throughput_figures(answer, cpu)

    def fill(self, broker: Broker) -> None:
        run_load(
            "produce",
            broker,
            records=FETCH_RECORDS,
            record_bytes=FETCH_RECORD_BYTES,
            requests=self.fill_requests,
            seconds=SECONDS_MAX,
        )

    def sustain(self, broker: Broker, seconds: float) -> dict[str, Any]:
        return run_load(
            "fetch", broker, connections=self.connections, fetch_bytes=FETCH_BYTES, seconds=seconds
        )


FETCH_RECORDS, FETCH_RECORD_BYTES = 1000, 1000
FETCH_BYTES = 2**20


@dataclass(frozen=True)
class Latency:
    """One record per tick while a consumer waits for it."""

    rate: int = 1000
    record_bytes: int = 100
    seconds: float = 5.0
    partitions: int = 1

    def run(self, turn: Turn) -> Figures:
        broker = turn.broker()
        with broker.topics([TOPIC]), cpu_of(broker) as cpu:
            answer = self._generate(broker, self.seconds, turn.warm_up_seconds)
        figures = {name: value for name, value in answer.items() if name.endswith("_us")}
        ticks = self.rate * (self.seconds + turn.warm_up_seconds)
        return {**figures, "cpu_us_per_request": cpu.seconds / ticks * 1e6}

    def fill(self, broker: Broker) -> None:
        """Nothing has to be there."""

    def sustain(self, broker: Broker, seconds: float) -> dict[str, Any]:
        return self._generate(broker, seconds, 0.0)

    def _generate(self, broker: Broker, seconds: float, warm_up_seconds: float) -> dict[str, Any]:
        return run_load(
            "latency",
            broker,
            rate=self.rate,
            record_bytes=self.record_bytes,
            seconds=seconds,
            warmup=warm_up_seconds,
        )
