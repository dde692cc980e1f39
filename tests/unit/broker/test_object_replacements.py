"""Replacements that jobs ask for: names are given once, indexes are looked at, and rows decide."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from anabranch.broker.object_merges import MergedNames
from anabranch.broker.object_replacements import NAMES_PER_REQUEST_MAX, ObjectReplacements, Outcome
from anabranch.cluster.entries import Entry, broker_fenced_entry
from anabranch.cluster.object_entries import Replacement, start_entry
from anabranch.errors import InvalidRequestError, WorkStoppedError
from anabranch.objects.memory_store import MemoryStore
from anabranch.record.object_merge import RowBytes, build_object, merged
from anabranch.record.object_names import ObjectId
from anabranch.testing.fake_clock import FakeClock
from anabranch.values import Offset
from support.upkeep_world import BROKER, ObjectWorld, a_batch

COLLECT_MS = 60_000


class Desk:
    """A broker's side of it, and a job's."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(self.clock.wall_ms)
        self.world = ObjectWorld()
        for value in (b"1", b"2", b"3"):
            self.world.write([(self.world.key(), a_batch([(b"k", value)]))])
        self.before_proposal: Callable[[], object] = lambda: None
        self.own_epoch: int | None = self.world.table.brokers[BROKER].epoch
        self.replacements = ObjectReplacements(
            lambda: self.world.table,
            self.store,
            MergedNames(BROKER, lambda: self.own_epoch),
            self.clock,
            COLLECT_MS,
            propose=self._propose,
            caught_up=self._caught_up,
            is_compacted=lambda topic: False,
        )

    async def _propose(self, entry: Entry) -> Offset:
        self.before_proposal()
        return self.world.apply(entry)

    async def _caught_up(self) -> None:
        await asyncio.sleep(0)

    def merged(self, object_id: ObjectId, *, is_stored: bool = True) -> Replacement:
        """What a job has made of all rows."""
        key = self.world.key()
        rows = self.world.rows(key)
        made = merged([RowBytes(row, self.world.bytes_of(row)) for row in rows])
        pieces, new = build_object({key: made}, object_id)
        if is_stored:
            self.store.put_now(object_id.name, pieces)
            self.world.stored[object_id.name] = b"".join(pieces)
        return Replacement(key, rows, new[key])

    def replace(self, replacement: Replacement) -> Outcome:
        (outcome,) = run(self.replacements.replace([replacement]))
        return outcome


def run(work: Awaitable[list[Outcome]]) -> list[Outcome]:
    async def awaited() -> list[Outcome]:
        return await work

    return asyncio.run(awaited())


def test_what_a_job_has_stored_takes_the_place_of_what_it_read() -> None:
    desk = Desk()
    (name,) = desk.replacements.name(1)
    assert desk.replace(desk.merged(name)) == Outcome(True)
    (row,) = desk.world.rows(desk.world.key())
    assert row.object_id == name
    assert desk.world.read(desk.world.key()) == desk.world.written[desk.world.key()]


def test_rows_that_have_changed_meanwhile_stay() -> None:
    desk = Desk()
    (name,) = desk.replacements.name(1)
    replacement = desk.merged(name)
    desk.before_proposal = lambda: desk.world.apply(start_entry({desk.world.key(): Offset(1)}))
    outcome = desk.replace(replacement)
    assert outcome == Outcome(False, "its rows have changed meanwhile")
    assert len(desk.world.rows(desk.world.key())) == 2


def test_asking_again_after_it_was_done_does_no_harm() -> None:
    desk = Desk()
    (name,) = desk.replacements.name(1)
    replacement = desk.merged(name)
    assert desk.replace(replacement).is_replaced
    before = desk.world.rows(desk.world.key())
    assert not desk.replace(replacement).is_replaced
    assert desk.world.rows(desk.world.key()) == before


def test_an_object_that_is_not_in_the_store_is_refused() -> None:
    desk = Desk()
    (name,) = desk.replacements.name(1)
    outcome = desk.replace(desk.merged(name, is_stored=False))
    assert "not in the store" in (outcome.reason or "")
    assert len(desk.world.rows(desk.world.key())) == 3


def test_an_object_that_is_not_whole_is_refused() -> None:
    desk = Desk()
    (name,) = desk.replacements.name(1)
    replacement = desk.merged(name, is_stored=False)
    desk.store.put_now(name.name, [b"not an object, but long enough to be taken for the footer of one"])
    assert "does not end with a footer" in (desk.replace(replacement).reason or "")


def test_a_name_that_was_not_given_here_or_long_ago_is_refused() -> None:
    desk = Desk()
    (name,) = desk.replacements.name(1)
    strange = name._replace(number=99)
    assert "has not named" in (desk.replace(desk.merged(strange)).reason or "")
    replacement = desk.merged(name)
    desk.clock.advance(COLLECT_MS)
    desk.replacements.name(1)
    assert "has not named" in (desk.replace(replacement).reason or "")


def test_a_topic_that_is_gone_is_refused() -> None:
    desk = Desk()
    (name,) = desk.replacements.name(1)
    replacement = desk.merged(name)
    desk.world.apply({"type": "topic-removed", "name": "orders"})
    assert "no such topic" in (desk.replace(replacement).reason or "")


def test_names_never_come_twice_and_are_bounded() -> None:
    desk = Desk()
    names = desk.replacements.name(3) + desk.replacements.name(2)
    assert len(set(names)) == 5
    for count in (0, -1, NAMES_PER_REQUEST_MAX + 1):
        with pytest.raises(InvalidRequestError, match="names were asked for"):
            desk.replacements.name(count)


def test_a_broker_whose_registration_does_not_count_gives_no_names() -> None:
    desk = Desk()
    desk.own_epoch = None
    with pytest.raises(WorkStoppedError):
        desk.replacements.name(1)
    desk.own_epoch = desk.world.table.brokers[BROKER].epoch
    desk.world.apply(broker_fenced_entry(BROKER, desk.own_epoch, is_fenced=True))
    with pytest.raises(WorkStoppedError):
        desk.replacements.name(1)


def test_too_many_rows_at_once_are_refused() -> None:
    desk = Desk()
    row = desk.world.rows(desk.world.key())[0]
    with pytest.raises(InvalidRequestError, match="ask for fewer"):
        run(desk.replacements.replace([Replacement(desk.world.key(), [row] * 5000, [])]))
