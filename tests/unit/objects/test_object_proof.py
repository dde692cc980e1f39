"""Of what a job says of a compaction: everything that a compaction makes is taken, and nothing that lost a record."""

from random import Random

import pytest

from anabranch.errors import OfferRefusedError
from anabranch.objects.layout.merge import (
    MergedRange,
    RowBytes,
    build_object,
    compacted,
    kept_ranges,
    map_row,
    stamped_batches,
)
from anabranch.objects.layout.names import Key, ObjectId, ObjectKind, Row
from anabranch.objects.layout.replacement_proof import ReplacementProof
from anabranch.record.compaction.batches import without_below
from anabranch.record.compaction.offset_map import OffsetMap
from anabranch.record.compaction.run import CompactionRun
from anabranch.record.records import records_of
from anabranch.values import Offset
from support.upkeep_world import INCARNATION, ObjectWorld, a_batch

TARGET = ObjectId(INCARNATION, 7, 0, ObjectKind.MERGED)
NOW_MS, RETENTION_MS = 1_000_000, 1000
SEEDS = 60


def parts_of(world: ObjectWorld) -> list[RowBytes]:
    return [RowBytes(row, world.bytes_of(row)) for row in world.rows(world.key())]


def a_world(rng: Random) -> ObjectWorld:
    world = ObjectWorld()
    for _ in range(rng.randrange(2, 8)):
        pairs = [
            (b"%d" % rng.randrange(6), None if rng.random() < 0.3 else b"%d" % rng.randrange(100))
            for _ in range(rng.randrange(1, 4))
        ]
        world.write([(world.key(), a_batch(pairs, timestamp_ms=5))])
    return world


def stored(made: list[MergedRange], key: Key) -> list[RowBytes]:
    """Rows of an object of these ranges."""
    pieces, rows = build_object({key: made}, TARGET)
    content = b"".join(pieces)
    return [RowBytes(row, content[row.position : row.position + row.length]) for row in rows[key]]


def proved(
    old: list[RowBytes],
    new: list[RowBytes],
    later: list[RowBytes],
    earlier: list[RowBytes],
    now_ms: int = NOW_MS,
) -> None:
    proof = ReplacementProof(is_compacted=True, now_ms=now_ms, delete_retention_ms=RETENTION_MS)
    for part in new:
        proof.add_new(part)
    for part in old:
        proof.add_old(part)
    for part in later:
        proof.add_later(part)
    if proof.has_expired:
        for part in earlier:
            proof.add_earlier(part)
    proof.end()


def run_over(parts: list[RowBytes], now_ms: int) -> CompactionRun:
    latest = OffsetMap(1000)
    for part in parts:
        map_row(part, latest, Offset(0))
    return CompactionRun(latest, parts[-1].row.next_offset, {}, now_ms, RETENTION_MS)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_takes_what_a_compaction_makes_and_refuses_it_with_a_record_less(seed: int) -> None:
    rng = Random(seed)
    world = a_world(rng)
    parts, key = parts_of(world), world.key()
    cut = rng.randrange(1, len(parts) + 1)
    old, later = parts[:cut], parts[cut:]
    new = stored(compacted(old, run_over(parts, NOW_MS)), key)
    proved(old, new, later, [])
    # The same again once the tombstones' time has come: they may go, and need not.
    again_ms = NOW_MS + 2 * RETENTION_MS
    if not new:
        return
    newer = stored(compacted(new, run_over([*new, *later], again_ms)), key)
    proved(new, newer, later, [], again_ms)
    proved(new, new, later, [], again_ms)
    missing = stored(without_one(new, rng), key)
    with pytest.raises(OfferRefusedError, match="is missing, though nothing replaces it"):
        proved(old, missing, later, [])


def without_one(parts: list[RowBytes], rng: Random) -> list[MergedRange]:
    """The same batches without one of their records; all of these are the last of their keys."""
    batches = [bytes(batch) for part in parts for batch in stamped_batches(*part)]
    chosen = rng.randrange(len(batches))
    offsets = [record.offset for record in records_of(batches[chosen])]
    if len(offsets) > 1:
        batches[chosen] = bytes(without_below(batches[chosen], Offset(offsets[1])))
    else:
        del batches[chosen]
    return kept_ranges(b"".join(batches)) if batches else []


def test_a_merge_is_the_same_batches() -> None:
    world = a_world(Random(1))
    parts = parts_of(world)
    data = b"".join(bytes(batch) for part in parts for batch in stamped_batches(*part))
    new = stored(kept_ranges(data), world.key())
    for offered, is_same in ((new, True), ([], False)):
        proof = ReplacementProof(is_compacted=False, now_ms=NOW_MS)
        for part in offered:
            proof.add_new(part)
        if is_same:
            for part in parts:
                proof.add_old(part)
            proof.end()
        else:
            with pytest.raises(OfferRefusedError, match="missing"):
                proof.add_old(parts[0])


def test_batches_that_are_none_of_the_old_ones_are_refused() -> None:
    world = a_world(Random(1))
    parts = parts_of(world)
    with pytest.raises(OfferRefusedError, match="none of those replaced"):
        proved(parts[:1], stored(compacted(parts, run_over(parts, NOW_MS)), world.key()), parts[1:], [])


def test_a_row_does_not_say_that_it_is_older_than_it_is() -> None:
    world = a_world(Random(1))
    (part, *_) = stored(compacted(parts_of(world), run_over(parts_of(world), NOW_MS)), world.key())
    wrong: Row = part.row._replace(max_timestamp=4)
    with pytest.raises(OfferRefusedError, match="newest record"):
        ReplacementProof(is_compacted=True, now_ms=NOW_MS).add_new(RowBytes(wrong, part.data))
