"""A broker finds what a job has compacted, takes it in or refuses it, and says which."""

import asyncio
import errno

from dirty_topic import dirty, offsets_of

from anabranch.broker.topics.partition import Partition
from anabranch.log.disk.checkpoint import read_offsets
from anabranch.record.compaction.check import OFFER_MS_MAX
from anabranch.record.compaction.offer_format import FOLDER, MANIFEST, OUTCOME, Outcome, load_outcome
from support.broker_bench import DATA, Bench, in_loop, turn, worked_off
from support.offers import lay_offer
from support.workers import HeldWorkers

ASIDE = f"{DATA}/t-0/{FOLDER}"


def offers_of(bench: Bench) -> list[str]:
    return bench.disk.list(ASIDE) if bench.disk.exists(ASIDE) else []


def outcome(bench: Bench) -> Outcome:
    found = load_outcome(bench.disk.read(f"{ASIDE}/{OUTCOME}"))
    assert found is not None
    return found


async def offered(bench: Bench) -> Partition:
    partition = await dirty(bench)
    lay_offer(bench.disk, partition.log, bench.clock.wall_ms())
    return partition


@in_loop
async def test_an_offer_is_taken_in_answered_and_removed() -> None:
    bench = Bench()
    partition = await offered(bench)
    before = partition.log.size_bytes
    await bench.broker.housekeeping.cleaning.offers.take_all()
    assert len(offsets_of(partition)) < 6
    assert offsets_of(partition)[-1] == 5
    assert outcome(bench) == Outcome("job", True, "", before - partition.log.size_bytes)
    assert offers_of(bench) == [OUTCOME]
    kept, _ = read_offsets(bench.disk, f"{DATA}/cleaner-offsets")
    assert kept[bench.broker.key_of(partition)] > 0
    left = offsets_of(partition)
    assert offsets_of(bench.again().topics.partition("t", 0)) == left


@in_loop
async def test_the_cleaner_takes_an_offer_before_it_cleans_itself() -> None:
    bench = Bench()
    await offered(bench)
    cleaning = bench.broker.housekeeping.cleaning
    await cleaning.clean_all()
    assert (cleaning.offers.taken_total, cleaning.runs_total) == (1, 1)


@in_loop
async def test_a_node_whose_cleaner_is_off_takes_offers_all_the_same() -> None:
    bench = Bench(log_cleaner_enable="false", log_cleaner_backoff_ms=1)
    partition = await offered(bench)
    bench.broker.housekeeping.start()
    for _ in range(200):
        await asyncio.sleep(0.001)
        if len(offsets_of(partition)) < 6:
            break
    await bench.broker.housekeeping.stop()
    assert bench.broker.housekeeping.cleaning.offers.taken_total == 1


@in_loop
async def test_a_wrong_offer_is_refused_with_a_reason_and_changes_nothing() -> None:
    bench = Bench()
    partition = await dirty(bench)
    lay_offer(bench.disk, partition.log, bench.clock.wall_ms(), spoil=lambda batches: [])
    before = offsets_of(partition)
    offers = bench.broker.housekeeping.cleaning.offers
    await offers.take_all()
    assert not outcome(bench).taken
    assert "missing" in outcome(bench).reason
    assert offsets_of(partition)[-2:] == before[-2:]
    assert (offers.refused_total, offers_of(bench)) == (1, [OUTCOME])


@in_loop
async def test_a_garbled_manifest_is_refused() -> None:
    bench = Bench()
    partition = await offered(bench)
    bench.disk.write(f"{ASIDE}/{MANIFEST}", b"nonsense")
    await bench.broker.housekeeping.cleaning.offers.take_all()
    assert "manifest" in outcome(bench).reason
    assert len(offsets_of(partition)) == 6


@in_loop
async def test_an_offer_for_a_log_with_nothing_to_compact_is_refused() -> None:
    bench = Bench()
    partition = await offered(bench)
    files = {name: bench.disk.read(f"{ASIDE}/{name}") for name in offers_of(bench)}
    await bench.broker.housekeeping.cleaning.offers.take_all()
    left = offsets_of(partition)
    bench.disk.unlink(f"{ASIDE}/{OUTCOME}")
    for name, data in files.items():
        bench.disk.write(f"{ASIDE}/{name}", data)
    await bench.broker.housekeeping.cleaning.offers.take_all()
    assert "nothing" in outcome(bench).reason
    assert offsets_of(partition) == left


@in_loop
async def test_a_bad_batch_of_the_log_itself_is_reported_and_the_offer_refused() -> None:
    bench = Bench()
    await offered(bench)
    await bench.broker.close()
    bench.disk.flip_bit(f"{DATA}/t-0/{1:020}.log", 500)
    again = bench.again()
    await again.broker.housekeeping.cleaning.offers.take_all()
    assert again.broker.corrupt_reads_total == 1
    assert not outcome(again).taken


@in_loop
async def test_a_full_disk_refuses_one_offer_and_not_the_next() -> None:
    bench = Bench()
    partition = await offered(bench)
    bench.disk.fail_next("create", errno.ENOSPC, path_contains="t-0")
    await bench.broker.housekeeping.cleaning.offers.take_all()
    assert not outcome(bench).taken
    assert len(offsets_of(partition)) == 6
    lay_offer(bench.disk, partition.log, bench.clock.wall_ms(), name="second")
    await bench.broker.housekeeping.cleaning.offers.take_all()
    assert outcome(bench).taken


@in_loop
async def test_files_without_a_manifest_are_left_while_they_grow_and_go_an_hour_later() -> None:
    bench = Bench()
    await offered(bench)
    bench.disk.unlink(f"{ASIDE}/{MANIFEST}")
    offers = bench.broker.housekeeping.cleaning.offers
    await offers.take_all()
    bench.clock.advance(OFFER_MS_MAX - 1)
    bench.disk.write(f"{ASIDE}/grown", b"more")
    await offers.take_all()
    bench.clock.advance(OFFER_MS_MAX - 1)
    await offers.take_all()
    assert offers_of(bench)
    bench.clock.advance(1)
    await offers.take_all()
    assert offers_of(bench) == []


@in_loop
async def test_a_topic_deleted_while_its_offer_is_checked_keeps_its_new_files() -> None:
    bench = Bench()
    await offered(bench)
    workers = HeldWorkers()
    bench.broker.workers = workers
    taking = asyncio.create_task(bench.broker.housekeeping.cleaning.offers.take_all())
    while not workers.heavies:
        await turn()
    workers.run_heavy()  # It was found.
    await turn()
    await bench.topics.delete("t")
    again = await dirty(bench, rounds=2)
    files = bench.disk.list(f"{DATA}/t-0")
    await worked_off(taking, workers)
    assert bench.disk.list(f"{DATA}/t-0") == files
    assert offsets_of(again) == [0, 1]


@in_loop
async def test_a_node_that_stops_leaves_the_offer_for_its_next_life() -> None:
    bench = Bench()
    partition = await offered(bench)
    bench.broker.housekeeping.is_stopping = True
    await bench.broker.housekeeping.cleaning.offers.take_all()
    assert MANIFEST in offers_of(bench)
    assert len(offsets_of(partition)) == 6
    again = bench.again()
    await again.broker.housekeeping.cleaning.offers.take_all()
    assert outcome(again).taken


@in_loop
async def test_a_file_in_the_place_of_the_folder_holds_up_nobody() -> None:
    bench = Bench()
    strange, fine = await dirty(bench, "a"), await dirty(bench, "b")
    bench.disk.write(f"{strange.log.folder}/{FOLDER}", b"no folder")
    lay_offer(bench.disk, fine.log, bench.clock.wall_ms())
    offers = bench.broker.housekeeping.cleaning.offers
    await offers.take_all()
    assert (offers.taken_total, offers.refused_total) == (1, 0)


@in_loop
async def test_a_folder_that_cannot_be_read_holds_up_nobody() -> None:
    bench = Bench()
    unreadable, fine = await dirty(bench, "a"), await dirty(bench, "b")
    bench.disk.make_folder(f"{unreadable.log.folder}/{FOLDER}")
    lay_offer(bench.disk, fine.log, bench.clock.wall_ms())
    list_folder = bench.disk.list

    def refuse(folder: str) -> list[str]:
        if "a-0" in folder:
            raise PermissionError(errno.EACCES, "not yours", folder)
        return list_folder(folder)

    bench.disk.list = refuse  # type: ignore[method-assign]
    offers = bench.broker.housekeeping.cleaning.offers
    await offers.take_all()
    assert (offers.taken_total, offers.refused_total) == (1, 0)
