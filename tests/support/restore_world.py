"""One seed of a cluster that loses all of its disks at once and has to come back from its bucket.

Three brokers with a topic that is written to, changes into mode object, is merged, compacted, collected and put into
snapshots, while one of five requests to the store fails. At a step that the seed chooses (a request of a certain kind,
before or after the store has done it) every disk vanishes. Then snapshots are damaged, the newest first, objects of
records are deleted, cut short or changed, and the cluster is restored, still with one of five requests failing.

    run_seed(7)      # raises AssertionError: something is lost, or renamed, and nobody says so

What has to be true: of what was acknowledged in mode object, and of all that a topic had when its change into mode
object was reported, every record comes back, and no offset that a producer was told names another record. With the two
newest snapshots damaged, or any object, records may be missing, but then the report names the loss, and it names none
otherwise.
"""

import asyncio
import contextlib
import re
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from random import Random
from typing import Any
from unittest.mock import patch

from anabranch.broker.restore.bucket_survey import SNAPSHOTS_NEEDED
from anabranch.broker.restore.object_restore import table_of
from anabranch.broker.restore.restore_report import RestoreReport
from anabranch.broker.restore.restoring import RestoreWish, Restoring
from anabranch.errors import RestoreRefusedError, StoreUnavailableError
from anabranch.objects.layout.merge import stamped_batches
from anabranch.objects.layout.snapshots import metadata_id_of, unpack_snapshot
from anabranch.objects.memory_store import MemoryStore
from anabranch.objects.retrying_store import RetryingStore
from anabranch.objects.store import Buffer, StoredObject
from anabranch.record.records import records_of
from anabranch.testing.fakes.disk import FakeDisk
from anabranch.testing.fakes.store import with_flipped_bit
from anabranch.values import Offset
from anabranch.wire.api_keys import ApiKey
from support.form_cluster import RETRIABLE, FormCluster, batch_of

FAILING = 5
"""One of so many requests fails."""
SMALL = {
    "object_gather_ms": "20",
    "object_merge_bytes": "1500",
    "object_collect_ms": "1000",
    "log_retention_check_interval_ms": "1000",
    "log_cleaner_backoff_ms": "1000",
}
LIFE_MS_MAX = 25_000
CHANGE_MS_MAX = 300_000
STEPS = (
    ("put", "merged/"),
    ("get", "segments/"),
    ("put", "metadata/"),
    ("get", "metadata/"),
    ("delete", "metadata/"),
    ("put", "segments/"),
    ("delete", "segments/"),
    ("delete", "segments/"),
    ("delete", "segments/"),
    ("delete", "merged/"),
    ("list", ""),
)
"""Of a mode change or a merge, of a snapshot, of a write, of a collection."""


class VanishedError(Exception):
    """Every disk is gone."""


class StepStore(MemoryStore):
    """Fails by seed, and lets the world end at one request."""

    def __init__(self, wall_ms: Callable[[], int], rng: Random) -> None:
        super().__init__(wall_ms)
        self._rng = rng
        self.is_failing = False
        self.fails: Callable[[str, str], bool] = lambda what, name: False
        self.step: tuple[str, str] | None = None
        self.steps_left = 0
        self.is_after = False
        self.has_ended = False
        self.requests: list[tuple[str, str]] = []

    async def _around(self, what: str, name: str, act: Callable[[], Any], *more: str) -> Any:
        if self.has_ended:
            await asyncio.Event().wait()
        is_last = False
        if self.step is not None and self.step[0] == what:
            self.steps_left -= any(each.startswith(self.step[1]) for each in (name, *more))
            is_last = self.steps_left < 0
        if is_last and not self.is_after:
            await self._end()
        self.requests.append((what, name))
        has_failed = self.fails(what, name) or (self.is_failing and self._rng.randrange(FAILING) == 0)
        if has_failed and self._rng.random() < 0.7:
            raise StoreUnavailableError(f"503 to {what} {name}.")
        result = act()
        if is_last:
            await self._end()
        if has_failed:  # It was done, and nobody is told.
            raise StoreUnavailableError(f"No answer to {what} {name}.")
        return result

    async def _end(self) -> None:
        self.has_ended, self.step = True, None
        await asyncio.Event().wait()

    async def put(self, name: str, pieces: Sequence[Buffer]) -> None:
        content = b"".join(pieces)
        await self._around("put", name, lambda: self.put_now(name, [content]))

    async def get(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        found: bytes = await self._around("get", name, lambda: self.content(name)[start:end])
        return found

    async def get_end(self, name: str, size: int) -> bytes:
        found: bytes = await self._around("get", name, lambda: self.content(name)[-size:])
        return found

    async def delete(self, names: Sequence[str]) -> None:
        if names:
            await self._around("delete", names[0], lambda: self.delete_now(names), *names[1:])

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[Sequence[StoredObject]]:
        while page := await self._around("list", prefix, lambda after=after: self.page(prefix, after)):
            yield page
            after = page[-1].name

    def damage(self, name: str, rng: Random) -> None:
        content, modified_ms = self._objects[name]
        changed = with_flipped_bit(content, rng.randrange(len(content)), rng.randrange(8))
        self._objects[name] = changed, modified_ms


def spoil(store: StepStore, rng: Random, snapshot: str | None) -> list[str]:
    """Empty, cut or change some objects of records, or delete what the snapshot knows, for of others that are gone no
    trace is left; which."""
    known = table_of(unpack_snapshot(store.content(snapshot))).objects.referenced() if snapshot else ()
    may_go = {object_id.name for object_id in known}
    names = [name for name in store.names if name.startswith(("segments/", "merged/"))]
    chosen = rng.sample(names, min(len(names), rng.choice((1, 1, 2, 4))))
    for name in chosen:
        content, modified_ms = store._objects[name]
        match rng.choice(("delete", "empty", "cut", "flip", "flip")):
            case "delete" if name in may_go:
                store.delete_now([name])
            case "delete" | "empty":
                store._objects[name] = b"", modified_ms
            case "cut":
                store._objects[name] = content[: rng.randrange(len(content))], modified_ms
            case _:
                store.damage(name, rng)
    return chosen


class RestoreCluster(FormCluster):
    """Its disks may vanish while anything goes on."""

    def __init__(
        self, mode: str, seed: int, partitions: int = 2, *, snapshot_ms: int = 10_000, **configs: str
    ) -> None:
        self.step_store: StepStore | None = None
        self.chance = Random(f"store {seed}")
        self._snapshot_ms = snapshot_ms
        super().__init__(mode, partitions, seed, **configs)

    def start(self, *broker_ids: int, **settings: str) -> None:
        if self.step_store is None:
            self.step_store = StepStore(self.clock.wall_ms, self.chance)
        self.store = self.step_store  # type: ignore[assignment]
        super().start(*broker_ids, **{**SMALL, "object_snapshot_ms": str(self._snapshot_ms), **settings})

    @property
    def steps(self) -> StepStore:
        assert self.step_store is not None
        return self.step_store

    def run(self, milliseconds: int) -> None:
        super().run(milliseconds)
        if self.step_store is not None and self.step_store.has_ended:
            raise VanishedError

    def vanish(self) -> None:
        """Nothing is left but the bucket."""
        for broker_id in list(self.lives):
            self.kill(broker_id, lose_disk=True)
        self.steps.has_ended = False
        self.steps.step = None
        self.steps.fails = lambda what, name: False

    def snapshots(self) -> list[str]:
        """The newest first."""
        found = [each for each in map(metadata_id_of, self.steps.names) if each is not None]
        return [each.name for each in sorted(found, key=lambda each: each.end, reverse=True)]

    # --- writing without waiting for ever -------------------------------------------------------------------------

    def try_produce(self, index: int) -> bool:
        """One record of the producer; whether it was acknowledged. One that was not may be there all the same, and is
        sent again by the next call."""
        leader = self.leader_of(index)
        if leader is None:
            self.run(20)
            return False
        number = len(self.written[index])
        row = {"index": index, "records": batch_of(number, self.clock.wall_ms())}
        topics = [{"name": "t", "partition_data": [row]}]
        body = {"transactional_id": None, "acks": -1, "timeout_ms": 3000, "topic_data": topics}
        asked = self.loop.create_task(self.lives[leader].client.ask(ApiKey.PRODUCE, 9, body))
        while not asked.done():
            self.run(10)
        answer = asked.result()["responses"][0]["partition_responses"][0]
        if answer["error_code"]:
            assert answer["error_code"] in RETRIABLE, answer
            return False
        assert answer["base_offset"] == number, "offsets have a gap"
        self.written[index].append(b"%d" % number)
        return True

    # --- coming back ------------------------------------------------------------------------------------------------

    def restore(self, rng: Random, *, accepts_loss: bool = False, **wish: Any) -> RestoreReport:
        disk = FakeDisk()
        store = RetryingStore(self.steps, self.clock)
        restoring = Restoring(store, disk, self.clock, "boot", lambda: uuid.UUID(int=rng.getrandbits(128)))
        wished = RestoreWish("data", broker_id=1, accepts_loss=accepts_loss, **wish)
        report: RestoreReport = self.do(restoring.run(wished))
        self._disks[1] = disk
        return report

    def restore_or_accept(self, rng: Random, *, may_lose: bool) -> RestoreReport:
        """Losses are accepted only where there may be any, and only after they were named."""
        try:
            report = self.restore(rng)
        except RestoreRefusedError as error:
            refusal = str(error)
        else:
            assert not report.losses
            return report
        assert may_lose, f"something was lost that should not have been: {refusal}"
        assert "--accept-loss" in refusal
        report = self.restore(rng, accepts_loss=True)
        assert report.losses
        return report

    def restart(self) -> None:
        """The first broker, on what was restored."""
        self.steps.is_failing = False
        self.start(1)
        self.settle()

    def lines(self, topic: str = "t") -> dict[int, dict[int, bytes]]:
        """Of every partition of the topic all records in the store by their offsets, as its table has them now."""
        table = self.leader.metadata.table
        found = table.topics.get(topic)
        if found is None:
            return {}
        return {index: self._line((found.topic_id, index)) for index in range(found.partition_count)}

    def _line(self, key: tuple[uuid.UUID, int]) -> dict[int, bytes]:
        objects = self.leader.metadata.table.objects
        line: dict[int, bytes] = {}
        for row in objects.rows(key, Offset(0), objects.row_count(key)):
            data = self.steps.content(row.object_id.name)[row.position : row.position + row.length]
            for batch in stamped_batches(row, data):
                for record in records_of(batch):
                    assert record.offset not in line, f"offset {record.offset} of {key[1]} is there twice"
                    line[record.offset] = bytes(record.value or b"")
        return line


def run_seed(seed: int) -> RestoreReport:
    """The same seed, the same run. Raises AssertionError."""
    ids = Random(f"ids {seed}")
    with patch.object(uuid, "uuid4", lambda: uuid.UUID(int=ids.getrandbits(128), version=4)):
        return RestoreRun(seed).run()


class RestoreRun:
    """One seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = Random(f"restore {seed}")
        mode = self.rng.choice(("ring", "ring", "object"))
        compacted = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1"}
        self.cluster = RestoreCluster(
            mode,
            seed,
            snapshot_ms=self.rng.choice((2000, 10_000)),
            **(compacted if self.rng.random() < 0.25 else {}),
        )
        self.is_object = mode == "object"
        self.safe: dict[int, int] = {0: 0, 1: 0}
        """Of each partition, how many of its first records the bucket alone must bring back."""

    def run(self) -> RestoreReport:
        rng, cluster = self.rng, self.cluster
        with contextlib.suppress(VanishedError):
            self._live()
        cluster.vanish()
        damaged = cluster.snapshots()[: rng.choice((0, 0, 1, 1, 1, 2, 3))]
        for name in damaged:
            cluster.steps.damage(name, rng)
        chance = Random(f"objects {self.seed}")
        whole = next(iter(cluster.snapshots()[len(damaged) :]), None)
        spoiled = spoil(cluster.steps, chance, whole) if chance.random() < 0.5 else []
        cluster.steps.is_failing = True
        may_lose = (
            bool(spoiled) or len(damaged) >= SNAPSHOTS_NEEDED or len(damaged) == len(cluster.snapshots())
        )
        report = cluster.restore_or_accept(rng, may_lose=may_lose)
        cluster.restart()
        self._check(report, may_lose=may_lose)
        return report

    def _live(self) -> None:
        rng, cluster = self.rng, self.cluster
        store = cluster.steps
        for _ in range(rng.randrange(3, 25)):
            self._write()
        store.is_failing = (
            rng.random() < 0.4
        )  # Else everything is done sooner, and more of it before the end.
        if rng.random() < 0.2:  # As long as no snapshot can be written everything else has to be enough.
            store.fails = lambda what, name: name.startswith("metadata/") and what != "list"
        store.step, store.steps_left = rng.choice(STEPS), rng.choice((0, 1, 2, 4, 8, 16))
        store.is_after = rng.random() < 0.5
        if not self.is_object:
            self._change("object", "stored")
        if rng.random() < 0.2:
            self._change("ring", "kept")
            self._write_some()
            self._change("object", "stored")
        end_ms = cluster.clock.monotonic_ms() + rng.choice((0, 3000, LIFE_MS_MAX, LIFE_MS_MAX))
        while cluster.clock.monotonic_ms() < end_ms:
            self._write_some()

    def _write_some(self) -> None:
        for _ in range(self.rng.randrange(20)):
            self._write()
        self.cluster.run(self.rng.choice((5, 50, 500, 2000)))

    def _write(self) -> None:
        index = self.rng.randrange(2)
        if self.cluster.try_produce(index) and self.is_object:
            self.safe[index] = len(self.cluster.written[index])

    def _change(self, mode: str, form: str) -> None:
        """As far as it comes. From when a change into mode object is reported everything has to be in the bucket; what
        comes after one into another mode does not."""
        cluster = self.cluster
        self.is_object = False
        answer = self._alter(mode)
        while answer is None or answer["error_code"]:
            cluster.run(100)
            answer = self._alter(mode)
        end_ms = cluster.clock.monotonic_ms() + CHANGE_MS_MAX
        while cluster.leader_id is None or cluster.forms() != {form}:
            assert cluster.clock.monotonic_ms() < end_ms, "the change did not come about"
            cluster.try_produce(self.rng.randrange(2))
            cluster.run(20)
        if mode == "object":
            self.is_object = True
            self.safe = {index: len(cluster.written[index]) for index in (0, 1)}

    def _alter(self, mode: str) -> dict[str, Any] | None:
        cluster = self.cluster
        if cluster.leader_id is None or len(cluster.lives) < 2:
            return None
        config = {"name": "anabranch.mode", "config_operation": 0, "value": mode}
        resource = {"resource_type": 2, "resource_name": "t", "configs": [config]}
        body = {"resources": [resource], "validate_only": False}
        client = cluster.lives[cluster.follower_id].client
        asked = cluster.loop.create_task(client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, body))
        while not asked.done():
            cluster.run(10)
        return dict(asked.result()["responses"][0])

    # --- what has to be true ---------------------------------------------------------------------------------------

    def _check(self, report: RestoreReport, *, may_lose: bool) -> None:
        lines: dict[int, dict[int, bytes]] = {}
        for topic in report.topics:
            for index, line in self.cluster.lines(topic).items():
                lines.setdefault(index, {}).update(line)
        for index, written in self.cluster.written.items():
            line = lines.get(index, {})
            self._check_offsets(index, written[: self.safe[index]], line)
            found = set(line.values())
            lost = [value for value in written[: self.safe[index]] if value not in found]
            assert not lost or is_named(report, index, len(lost)), f"{len(lost)} of {index} are lost silently"
            assert not lost or may_lose, f"{len(lost)} of partition {index} are lost: {report.losses}"
            self._check_reading(index, report)

    def _check_offsets(self, index: int, written: Sequence[bytes], line: dict[int, bytes]) -> None:
        renamed = [offset for offset, value in enumerate(written) if line.get(offset, value) != value]
        assert not renamed, f"offsets {renamed[:5]} of partition {index} name other records"

    def _check_reading(self, index: int, report: RestoreReport) -> None:
        """Whatever position somebody had, reading goes on there."""
        for topic in report.topics:
            head = self._head(topic, index)
            if head is None or (not report.losses and head[1] < self.safe[index]):
                continue
            for at in sorted({0, self.safe[index] // 2, self.safe[index]}):
                if at <= head[1]:
                    code = self._fetch_code(topic, index, at)
                    assert code == 0, f"position {at} of {topic}-{index} is answered by {code}"

    def _head(self, topic: str, index: int) -> tuple[int, int] | None:
        table = self.cluster.leader.metadata.table
        found = table.topics.get(topic)
        if found is None or index >= found.partition_count:
            return None
        head = table.objects.head((found.topic_id, index))
        return int(head.start), int(head.end)

    def _fetch_code(self, topic: str, index: int, at: int) -> int:
        partition = {
            "partition": index,
            "fetch_offset": at,
            "current_leader_epoch": -1,
            "last_fetched_epoch": -1,
            "log_start_offset": -1,
            "partition_max_bytes": 2**20,
        }
        body = {
            "max_wait_ms": 100,
            "min_bytes": 1,
            "max_bytes": 2**20,
            "session_id": 0,
            "session_epoch": -1,
            "topics": [{"topic": topic, "partitions": [partition]}],
            "forgotten_topics_data": [],
        }
        answer = self.cluster.ask(1, ApiKey.FETCH, 12, body)
        return int(answer["responses"][0]["partitions"][0]["error_code"])


def is_named(report: RestoreReport, index: int, count: int) -> bool:
    """Whether a report says that so many records of a partition are lost, or that it cannot say how many."""
    named = 0
    for line in report.losses:
        if "objects that are needed without them" in line or " cannot be read" in line:
            return True
        found = re.match(r"(\d+) records of t-(\d+) ", line)
        if found is not None and int(found[2]) == index:
            named += int(found[1])
        newer = re.search(r" has lost up to (\d+) records", line)
        if newer is not None:
            named += int(newer[1])
    return named >= count
