"""Simulator: one node in one thread, on a disk and a clock that obey a seed. The same seed gives the same run.

    sim = Simulator(seed=7)
    sim.create_topic("orders", partitions=2)
    sim.run(50)
    pending = sim.produce("orders", 0, [b"a", b"b"])
    sim.disk.fail_next("sync")
    sim.run(100)                    # virtual milliseconds; pending.body holds the answer, if there was one
    sim.crash()                     # the power goes: any subset of what was not synced is lost
    sim.kill()                      # only the process dies: the page cache survives
    sim.fetch_all("orders", 0)      # [(offset, value), ...]

Requests enter as frames and answers leave as frames; only the socket is missing. An exception that nobody handles,
or a line in the log that calls itself a defect, ends the run with SimulationError. `python -m
anabranch.testing.simulation.simulator 7` repeats the random run of seed 7 (see `workload`) and prints its trace.
"""

import asyncio
import logging
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any, Self
from unittest.mock import patch

from anabranch.broker.broker import Broker
from anabranch.broker.write.sync_place import PROOF_MIN
from anabranch.config import NodeSettings
from anabranch.record.batch import batch_spans
from anabranch.record.builder import BatchBuilder
from anabranch.record.records import records_of
from anabranch.testing.fakes.clock import FakeClock
from anabranch.testing.fakes.disk import FakeDisk, PowerLoss
from anabranch.testing.fakes.loop import SimWorkers, VirtualLoop
from anabranch.testing.in_process_client import Body, InProcessClient, Pending
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode

DATA_DIR = "data"
ANSWER_MS_MAX = 10_000
FETCH_BYTES = 2**20

SMALL: Mapping[str, object] = {
    # Small enough that a short run rolls segments, writes indexes and fills a disk.
    "log.segment.bytes": 2048,
    "log.index.interval.bytes": 128,
    "offsets.topic.num.partitions": 2,
    "auto.create.topics.enable": False,
}

Producer = tuple[int, int, int]
"""Producer id, epoch, and the sequence of the first record."""


class SimulationError(AssertionError):
    """Something happened that must never happen; the message says what, the seed brings it back."""


class Simulator:
    def __init__(
        self, seed: int, *, flush: str = "always", settings: Mapping[str, object] | None = None
    ) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.clock = FakeClock()
        self.disk = FakeDisk()
        self.trace: list[str] = []
        self.lives = 0
        self._boots = 0
        self._settings = NodeSettings.load(
            {**SMALL, "flush": flush, "data.dir": DATA_DIR, **(settings or {})}
        )
        self._defects = Defects(lambda: self.disk.is_dark)
        self._is_over = True
        self._open()

    def note(self, line: str) -> None:
        """Add a line to the trace."""
        self.trace.append(f"{self.clock.monotonic_ms():>7} {line}")

    # --- life and death ------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Begin a life on what the disk holds; the power may go again while it recovers.

        A disk that was full has room again: a node that cannot even open its logs does not start.
        """
        self.disk.capacity_bytes = None
        while True:
            self.lives += 1
            self._is_over = False
            self._loop = VirtualLoop(self.clock, lambda: self.disk.is_dark and not self._is_over)
            self._loop.set_exception_handler(self._defects.unhandled)
            with self._acting():
                is_open = self._loop.run_until_complete(self._open_broker())
            if is_open:
                self.note(f"life {self.lives} begins")
                return
            self.note("the power goes during recovery")
            self._bury()
            self._lose_power()

    async def _open_broker(self) -> bool:
        workers = SimWorkers(self._loop, self.rng)
        boot = f"boot-{self._boots}"
        self.broker = Broker(self._settings, self.clock, self.disk, workers, DATA_DIR, boot)
        try:
            self.broker.open()
        except PowerLoss:
            return False
        if self.rng.random() < 0.5:
            self._prove_disk()
        self.broker.start()
        self.client = InProcessClient(self.broker, is_cut=lambda: self._is_over or self.disk.is_dark)
        return True

    def _prove_disk(self) -> None:
        """Lives are short: half of them begin with what others find out late, that syncs may run on the loop."""
        for _ in range(PROOF_MIN):
            self.broker.core.syncer.place.note(0, here=False)

    def crash(self, *, again_after: int | None = None) -> None:
        """Cut the power and start again; `again_after` cuts it once more, so many disk operations later."""
        self.note("the power goes")
        self._bury()
        self._lose_power()
        if again_after is not None:
            self.disk.crash_at = self.disk.operations + again_after
        self._open()

    def kill(self) -> None:
        """End the process and start again: what was written is still in the page cache."""
        self.note("the process is killed")
        self._bury()
        self.disk.forget_faults()
        self.disk.kill()
        self._open()

    def restart(self, *, lose_power: bool = False) -> None:
        """Stop cleanly and start again, perhaps with a power cut in between."""
        self.note("the node stops")
        with self._acting():
            stopping = self._loop.create_task(self._stop())
            stopping.add_done_callback(self._stop_loop)
            self._loop.run_forever()
            stopping.remove_done_callback(self._stop_loop)
        if not self.disk.is_dark:
            stopping.result()
        lose_power |= self.disk.is_dark
        self._bury()
        if lose_power:
            self._lose_power()
        else:
            self.disk.forget_faults()
            self.disk.kill()
        self._open()

    def close(self) -> None:
        """End the simulation."""
        if not self._is_over:
            self._bury()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _stop_loop(self, _: object) -> None:
        self._loop.stop()

    async def _stop(self) -> None:
        await self.broker.drain()
        await self.broker.close()

    def _lose_power(self) -> None:
        self.disk.crash(self.rng)
        self._boots += 1

    def _bury(self) -> None:
        """End a life: nothing it still does reaches the disk or a client."""
        self._is_over = True
        self.disk.crash_at = self.disk.operations
        self._loop.set_exception_handler(lambda loop, context: None)
        while rest := asyncio.all_tasks(self._loop):  # Some begin another in their last moment.
            for task in rest:
                task.cancel()
            self._loop.run_for(0)
        self._loop.close()

    # --- time ------------------------------------------------------------------------------------------------

    def run(self, milliseconds: int) -> None:
        """Let time pass. If the disk was told to go dark (`disk.crash_at`) and did, a crash follows."""
        with self._acting():
            self._loop.run_for(milliseconds)
        if self.disk.is_dark:
            self.crash()

    def run_until(self, pending: Pending) -> Body | None:
        """Run until a request is answered: its answer, or None if a crash or a closed link came first."""
        life = self.lives
        if not pending.is_settled:
            pending.on_settled = self._stop_loop
            self.run(ANSWER_MS_MAX)
        if not pending.is_settled and life == self.lives:
            raise SimulationError(f"{pending.api.name} was not answered within {ANSWER_MS_MAX} ms")
        return pending.body

    @contextmanager
    def _acting(self) -> Iterator[None]:
        """Ids come from the seed and defects are noticed while the loop runs."""
        ids = patch.object(uuid, "uuid4", lambda: uuid.UUID(int=self.rng.getrandbits(128), version=4))
        with ids, self._defects.watching():
            yield
        self._defects.check()

    # --- requests --------------------------------------------------------------------------------------------

    def send(self, api: ApiKey, version: int, body: Body) -> Pending:
        """Hand in any request; its answer comes while `run` runs."""
        with self._acting():
            asyncio._set_running_loop(self._loop)
            try:
                return self.client.send(api, version, body)
            except PowerLoss:
                return Pending(api, version)  # Nobody answers: the machine is off.
            finally:
                asyncio._set_running_loop(None)

    def create_topic(self, topic: str, partitions: int = 1) -> Pending:
        made = {"name": topic, "num_partitions": partitions, "replication_factor": 1}
        return self.send(ApiKey.CREATE_TOPICS, 7, {"topics": [made]})

    def delete_topic(self, topic: str) -> Pending:
        return self.send(ApiKey.DELETE_TOPICS, 5, {"topic_names": [topic]})

    def produce(
        self,
        topic: str,
        partition: int,
        values: Sequence[bytes],
        acks: int = -1,
        producer: Producer | None = None,
    ) -> Pending:
        """Send one batch; `produced` reads its answer."""
        request = produce_request(topic, partition, values, self.clock.wall_ms(), acks, producer)
        return self.send(ApiKey.PRODUCE, 9, request)

    def fetch_all(self, topic: str, partition: int) -> list[tuple[int, bytes | None]] | None:
        """Every record a consumer can see, with its offset; None if the power went meanwhile."""
        found: list[tuple[int, bytes | None]] = []
        offset = 0
        while True:
            body = self.run_until(self._fetch(topic, partition, offset))
            if body is None:
                return None
            answer = body["responses"][0]["partitions"][0]
            if answer["error_code"]:
                name = ErrorCode(answer["error_code"]).name
                raise SimulationError(f"{topic}-{partition} cannot be read at {offset}: {name}")
            found += records_from(answer["records"], offset)
            if offset == (found[-1][0] + 1 if found else 0):
                return found
            offset = found[-1][0] + 1

    def _fetch(self, topic: str, partition: int, offset: int) -> Pending:
        return self.send(ApiKey.FETCH, 12, fetch_request(topic, partition, offset))


def produce_request(
    topic: str,
    partition: int,
    values: Sequence[bytes],
    now_ms: int,
    acks: int,
    producer: Producer | None,
    key_of: Callable[[bytes], bytes | None] = lambda value: None,
) -> Body:
    """One batch, for version 9."""
    producer_id, epoch, sequence = producer or (-1, -1, -1)
    builder = BatchBuilder(producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
    for value in values:
        builder.add(key_of(value), value, timestamp_ms=now_ms)
    data = {"index": partition, "records": bytes(builder.build())}
    return {"acks": acks, "topic_data": [{"name": topic, "partition_data": [data]}]}


def fetch_request(topic: str, partition: int, offset: int) -> Body:
    """All there is, at once, for version 12."""
    wanted = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": FETCH_BYTES}
    return {
        "max_wait_ms": 0,
        "min_bytes": 1,
        "max_bytes": FETCH_BYTES,
        "session_epoch": -1,
        "topics": [{"topic": topic, "partitions": [wanted]}],
    }


def produced(pending: Pending) -> tuple[ErrorCode, int] | None:
    """Error code and base offset of a produce request's answer; None if there was none."""
    if pending.body is None:
        return None
    answer = pending.body["responses"][0]["partition_responses"][0]
    return ErrorCode(answer["error_code"]), answer["base_offset"]


def records_from(data: bytes | memoryview | None, offset: int) -> Iterator[tuple[int, bytes | None]]:
    data = bytes(data or b"")
    for start, end in batch_spans(data):
        for record in records_of(memoryview(data)[start:end]):
            if record.offset >= offset:
                yield record.offset, record.value


class Defects(logging.Handler):
    """Collects what must not happen while the node lives: unhandled exceptions, and log lines about defects."""

    def __init__(self, is_dead: Callable[[], bool]) -> None:
        """`is_dead`: whoever acts is without power, and what it says does not count."""
        super().__init__(logging.ERROR)
        self._is_dead = is_dead
        self._found: list[str] = []
        self._error: BaseException | None = None

    def unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not self._is_dead() and not isinstance(error, PowerLoss):
            self._found.append(f"{context['message']}: {error!r}")
            self._error = error

    def emit(self, record: logging.LogRecord) -> None:
        if "defect" in record.getMessage() and not self._is_dead():
            self._found.append(record.getMessage())
            self._error = record.exc_info[1] if record.exc_info else None

    @contextmanager
    def watching(self) -> Iterator[None]:
        logger = logging.getLogger("anabranch")
        if self in logger.handlers:  # Somebody ends while others go on.
            yield
            return
        propagates = logger.propagate
        logger.addHandler(self)
        logger.propagate = False  # A run fails thousands of writes on purpose; nobody wants to read of each.
        try:
            yield
        finally:
            logger.propagate = propagates
            logger.removeHandler(self)

    def check(self) -> None:
        if self._found:
            found, self._found = self._found, []
            raise SimulationError("; ".join(found)) from self._error


def main(arguments: Sequence[str]) -> int:
    """Repeat the run of one seed, with its trace."""
    from anabranch.testing.simulation.workload import Workload

    workload = Workload(int(arguments[0]))
    try:
        with workload.sim:
            workload.run()
    finally:
        sys.stdout.write("\n".join(workload.sim.trace) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
