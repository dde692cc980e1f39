"""Holding: the bytes of one gathered segment, and the jobs they came with, until it is stored and agreed on.

The bytes are copied when they are added. Once built they are the pieces of one object, under one name for ever.
"""

import asyncio
from collections.abc import Sequence

from anabranch.broker.write.append_queue import AppendJob
from anabranch.objects.layout.format import ObjectBuilder
from anabranch.objects.layout.names import Item, Key, ObjectId
from anabranch.objects.store import Buffer

LATE_NEVER_MS = 2**63


class Holding:
    """The bytes of one segment, and the jobs they came with."""

    __slots__ = ("_jobs", "builder", "deadline_ms", "generations", "items", "name", "pieces", "task")

    def __init__(self) -> None:
        self.builder: ObjectBuilder | None = ObjectBuilder()
        self._jobs: dict[Key, list[AppendJob]] = {}
        self.generations: dict[Key, int] = {}
        """Of each partition, the least that it had when a job of it came."""
        self.deadline_ms = LATE_NEVER_MS
        """When the first of them is late."""
        self.name: ObjectId | None = None
        self.pieces: Sequence[Buffer] = ()
        self.items: Sequence[Item] = ()
        self.task: asyncio.Task[None] | None = None
        """The try to store it that is under way."""

    def add(self, key: Key, job: AppendJob) -> None:
        assert self.builder is not None, "a segment that is sealed takes no more"
        assert job.batch is not None, "a batch is written once"
        self.builder.add(key, job.batch, job.header)
        job.batch = None
        self._jobs.setdefault(key, []).append(job)
        generation = job.partition.generation
        self.generations[key] = min(generation, self.generations.get(key, generation))
        self.deadline_ms = min(self.deadline_ms, job.deadline_ms)

    def build(self, name: ObjectId) -> None:
        if self.builder is not None:
            self.pieces, self.items = self.builder.build()
            self.name, self.builder = name, None
        assert self.name == name, "a segment has one name"

    def jobs(self) -> list[AppendJob]:
        """In the order of the items."""
        return [job for jobs in self._jobs.values() for job in jobs]

    def take_late(self, now_ms: int) -> list[AppendJob]:
        if now_ms < self.deadline_ms:
            return []
        waiting = [job for job in self.jobs() if not job.is_finished]
        self.deadline_ms = min(
            (job.deadline_ms for job in waiting if job.deadline_ms > now_ms), default=LATE_NEVER_MS
        )
        return [job for job in waiting if job.deadline_ms <= now_ms]
