"""Replacements that jobs ask for: names are given once, nothing that a job says is believed, and rows decide."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, cast

import pytest

from anabranch.broker.object.merges import MergedNames
from anabranch.broker.object.replacements import (
    NAMES_PER_REQUEST_MAX,
    ObjectReplacements,
    Outcome,
    ProofLimits,
)
from anabranch.broker.object.upkeep import keeping_of
from anabranch.cluster.metadata.entries import Entry, broker_fenced_entry
from anabranch.cluster.objects.entries import Replacement, start_entry
from anabranch.config import NodeSettings, TopicSettings
from anabranch.errors import InvalidRequestError, WorkStoppedError
from anabranch.objects.layout.merge import RowBytes, build_object, kept_ranges, merged, stamped_batches
from anabranch.objects.layout.names import ObjectId
from anabranch.objects.memory_store import MemoryStore
from anabranch.record.batch import stamp
from anabranch.record.compaction.batches import compacted
from anabranch.testing.fakes.clock import FakeClock
from anabranch.values import Generation, Offset
from support.upkeep_world import BROKER, ObjectWorld, Pair, a_batch
from support.workers import InlineWorkers
from unit.broker.object.test_object_upkeep_driver import Stored

COLLECT_MS = 60_000
KEYS_MAX = 100
ONE_KEY: Sequence[Sequence[Pair]] = [[(b"k", b"1")], [(b"k", b"2")], [(b"k", b"3")]]
COMPACTED = {"cleanup.policy": "compact", "delete.retention.ms": "1000"}


class Desk:
    """A broker's side of it, and a job's."""

    def __init__(
        self, batches: Sequence[Sequence[Pair]] = ONE_KEY, overrides: Mapping[str, str] | None = None
    ) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(self.clock.wall_ms)
        self.world = ObjectWorld(overrides=overrides)
        self.world.stored = cast(dict[str, bytes], Stored(self.store))
        for pairs in batches:
            self.world.write([(self.world.key(), a_batch(pairs, timestamp_ms=self.clock.wall_ms()))])
        self.before_proposal: Callable[[], object] = lambda: None
        self.own_epoch: int | None = self.world.table.brokers[BROKER].epoch
        self.replacements = ObjectReplacements(
            lambda: self.world.table,
            self.store,
            MergedNames(BROKER, lambda: self.own_epoch),
            self.clock,
            InlineWorkers(),
            COLLECT_MS,
            ProofLimits(KEYS_MAX, 2**20),
            propose=self._propose,
            caught_up=self._caught_up,
            keeping_of=lambda topic: keeping_of(
                TopicSettings.from_overrides(NodeSettings(), topic.overrides)
            ),
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
        return Replacement(key, rows, new[key])

    def claimed(self, batches: Sequence[bytes], *, upto: int | None = None, **row: Any) -> Replacement:
        """A job says that these batches, which have their offsets, are what is left of the first rows when they are
        compacted."""
        key = self.world.key()
        old = [each for each in self.world.rows(key) if upto is None or each.next_offset <= upto]
        (name,) = self.replacements.name(1)
        made = (
            [each._replace(is_compacted=True) for each in kept_ranges(b"".join(batches))] if batches else []
        )
        if not made:
            return Replacement(key, old, [])
        pieces, new = build_object({key: made}, name)
        self.store.put_now(name.name, pieces)
        return Replacement(key, old, [each._replace(**row) for each in new[key]])

    def batch(self, number: int) -> bytes:
        """One of those that were written, as it lies in the partition."""
        row = self.world.rows(self.world.key())[number]
        (found,) = stamped_batches(row, self.world.bytes_of(row))
        return bytes(found)

    def refusal(self, replacement: Replacement) -> str:
        """Nothing has changed, and why."""
        before = self.world.read(self.world.key())
        outcome = self.replace(replacement)
        assert not outcome.is_replaced
        assert self.world.read(self.world.key()) == before
        return outcome.reason or ""

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


# --- what a job says of a compaction ----------------------------------------------------------------------------------


def test_an_empty_replacement_of_the_last_records_of_their_keys_is_refused() -> None:
    desk = Desk([[(b"%d" % number, b"v")] for number in range(5)], COMPACTED)
    assert "nothing replaces it" in desk.refusal(desk.claimed([]))


def test_an_empty_replacement_of_records_that_later_ones_replace_is_taken() -> None:
    desk = Desk([[(b"a", b"1"), (b"b", b"1")], [(b"a", b"2")], [(b"b", b"2")]], COMPACTED)
    assert desk.replace(desk.claimed([], upto=2)) == Outcome(True)
    assert [record.value for record in desk.world.read(desk.world.key())] == [b"2", b"2"]


def test_a_compaction_that_lacks_the_last_record_of_a_key_is_refused() -> None:
    desk = Desk([[(b"a", b"1")], [(b"b", b"1")], [(b"a", b"2")]], COMPACTED)
    assert "offset 1 is missing" in desk.refusal(desk.claimed([desk.batch(2)]))
    assert desk.replace(desk.claimed([desk.batch(1), desk.batch(2)])) == Outcome(True)


def test_a_compaction_that_keeps_more_than_it_must_is_taken() -> None:
    desk = Desk(ONE_KEY, COMPACTED)
    assert desk.replace(desk.claimed([desk.batch(number) for number in range(3)])) == Outcome(True)


def test_records_that_were_never_there_or_are_changed_are_refused() -> None:
    desk = Desk(ONE_KEY, COMPACTED)
    changed = bytearray(a_batch([(b"k", b"forged")], timestamp_ms=desk.clock.wall_ms()))
    stamp(changed, 0, Offset(2), Generation(0))
    assert "other records" in desk.refusal(desk.claimed([bytes(changed)]))
    more = bytearray(a_batch([(b"k", b"1"), (b"k", b"1")], timestamp_ms=desk.clock.wall_ms()))
    stamp(more, 0, Offset(1), Generation(0))
    assert desk.refusal(desk.claimed([bytes(more)]))


def test_a_row_that_says_it_is_older_than_it_is_is_refused() -> None:
    """Retention would delete it at once."""
    desk = Desk(ONE_KEY, COMPACTED)
    replacement = desk.claimed([desk.batch(2)], max_timestamp=1)
    assert "newest record" in desk.refusal(replacement)


def test_a_merge_with_other_bytes_of_the_same_size_is_refused() -> None:
    desk = Desk()
    (name,) = desk.replacements.name(1)
    replacement = desk.merged(name, is_stored=False)
    key = desk.world.key()
    forged = bytearray(b"".join(desk.batch(number) for number in (0, 1)))
    batch = bytearray(a_batch([(b"k", b"X")], timestamp_ms=desk.clock.wall_ms()))
    stamp(batch, 0, Offset(2), Generation(0))
    pieces, _ = build_object({key: kept_ranges(forged + batch)}, name)
    desk.store.put_now(name.name, pieces)
    assert "other records" in desk.refusal(replacement)


def test_a_tombstone_stays_until_its_time_and_while_it_deletes_something() -> None:
    desk = Desk([[(b"k", b"1")], [(b"k", None)], [(b"x", b"1")]], COMPACTED)
    assert "offset 1 is missing" in desk.refusal(desk.claimed([desk.batch(2)])), "it has no horizon yet"
    thinned = compacted(
        desk.batch(1), lambda offset, key: True, now_ms=desk.clock.wall_ms(), delete_retention_ms=1000
    )
    assert thinned is not None
    assert desk.replace(desk.claimed([desk.batch(0), bytes(thinned)], upto=2)) == Outcome(True)
    desk.clock.advance(1001)
    rows = desk.world.rows(desk.world.key())
    both = desk.world.bytes_of(rows[0])
    first = bytes(next(iter(stamped_batches(rows[0], both))))
    assert "which it deletes" in desk.refusal(desk.claimed([first], upto=2))
    assert desk.replace(desk.claimed([], upto=2)) == Outcome(True)
    assert [record.key for record in desk.world.read(desk.world.key())] == [b"x"]


def test_a_tombstone_does_not_go_while_an_older_row_has_what_it_deletes() -> None:
    desk = Desk([[(b"k", b"1")], [(b"k", None)], [(b"x", b"1")]], COMPACTED)
    thinned = compacted(
        desk.batch(1), lambda offset, key: True, now_ms=desk.clock.wall_ms(), delete_retention_ms=0
    )
    assert thinned is not None
    key, rows = desk.world.key(), desk.world.rows(desk.world.key())
    middle = desk.claimed([bytes(thinned)], upto=2)
    assert desk.replace(middle._replace(old=rows[1:2])) == Outcome(True)
    desk.clock.advance(1001)
    row = desk.world.rows(key)[1]
    assert "which it deletes" in desk.refusal(Replacement(key, [row], []))


def test_more_keys_than_can_be_checked_at_once_are_refused() -> None:
    desk = Desk([[(b"%d" % number, b"v")] for number in range(KEYS_MAX + 1)], COMPACTED)
    assert "replace fewer" in desk.refusal(desk.claimed([]))
