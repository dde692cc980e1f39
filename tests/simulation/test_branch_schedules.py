"""Schedules of whole brokers that fall into sides and join: a death at every step of a merge, a producer that retries
on the other side, links that are cut between two of three only."""

from collections.abc import Iterator

import pytest

from anabranch.broker.branch import partition as branch_partition
from anabranch.broker.branch.lanes.logs import lane_folder
from anabranch.broker.branch.line_view import headers_of
from anabranch.log.log import Log
from anabranch.modes.branch.lines import Span
from anabranch.modes.branch.rows import Tip
from anabranch.record.batch import BatchHeader
from anabranch.testing.simulation.simulator import produce_request
from anabranch.values import BrokerId
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode
from support.branch_schedule import BranchSchedule

STEPS = range(10)
"""Operations of its disk that a broker still does before its power goes."""
LANES_MAX = 8
JSON_INTEGER_MAX = 2**53


@pytest.mark.parametrize("first", range(2))
def test_a_broker_that_dies_while_it_joins_branches_joins_them_after_its_return(first: int) -> None:
    deaths = 0
    for steps in STEPS[first::2]:
        with BranchSchedule(seed=steps) as world:
            expected = world.fall_apart()
            disks = {number: machine.disk for number, machine in world.sim.machines.items()}
            world.sim.net.heal()
            while not (begun := [number for number in world.sim.lives if world.is_joining(number)]):
                world.sim.run(1)
            disks[begun[0]].crash_at = disks[begun[0]].operations + steps
            world.sim.run(1000)
            disks[begun[0]].crash_at = None
            if begun[0] not in world.sim.lives:
                deaths += 1
                world.sim.start(begun[0])
            world.settle()
            assert sorted(world.values()) == expected
    assert deaths == len(STEPS[first::2]), "not everybody died who was to"


def test_a_batch_that_is_sent_to_both_sides_of_a_split_is_there_once_in_the_end() -> None:
    with BranchSchedule() as world:
        lone = world.primary()
        world.write(lone, b"first", (1000, 0, 0))
        world.cut_off(lone)
        other = world.primary(among=[number for number in world.sim.lives if number != lone])
        world.write(lone, b"twice", (1000, 0, 1))
        world.write(other, b"twice", (1000, 0, 1))
        world.write(other, b"then", (1000, 0, 2))
        world.sim.net.heal()
        world.sim.run_until(world.joined)
        world.settle()
        assert sorted(world.values()) == [b"first", b"then", b"twice"]
        world.write(world.primary(), b"last", (1000, 0, 3))


@pytest.mark.parametrize("is_stopped", [False, True])
def test_what_was_under_way_to_the_old_primary_is_known_though_much_was_written_since(
    is_stopped: bool,
) -> None:
    """Its answer was lost with the link, and the client sends it again when its time is up: to the next primary, or
    after the sides were joined. `is_stopped`: every broker has written down meanwhile what it remembers."""
    with BranchSchedule() as world:
        lone = world.primary()
        firsts = [world.write(lone, b"first %d" % number, (1000, 0, number)) for number in range(7)]
        world.cut_off(lone)
        world.write(lone, b"lone")
        others = [number for number in world.sim.lives if number != lone]
        for number in range(7, 30):
            world.write(world.primary(among=others), b"then %d" % number, (1000, 0, number))
        for number in (5, 6):
            repeated = world.write(world.primary(among=others), b"first %d" % number, (1000, 0, number))
            assert repeated == firsts[number]
        world.sim.net.heal()
        world.sim.run_until(world.joined)
        world.settle()
        if is_stopped:
            for number in list(world.sim.lives):
                world.sim.stop(number)
                world.sim.run_until(lambda gone=number: gone not in world.sim.lives)
                world.sim.start(number)
                world.settle()
        for number in range(30, 50):
            world.write_to_primary(b"last %d" % number, (1000, 0, number))
        assert world.write(world.primary(), b"first 3", (1000, 0, 3)) == firsts[3]
        assert world.write(world.primary(), b"then 29", (1000, 0, 29)) > firsts[6]
        values = world.values()
        assert len(values) == len(set(values)) == 51


def test_whoever_takes_over_reads_only_what_came_since_it_wrote_down_who_has_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[int] = []

    def counted(log: Log, span: Span) -> Iterator[BatchHeader]:
        for header in headers_of(log, span):
            read.append(header.base_offset)
            yield header

    monkeypatch.setattr(branch_partition, "FOLLOWED_RECORDS", 10)
    with BranchSchedule() as world:
        first = world.primary()
        offsets = [world.write(first, b"%d" % number, (1000, 0, number)) for number in range(30)]
        world.sim.run(20_000)
        offsets += [world.write(first, b"%d" % number, (1000, 0, number)) for number in range(30, 34)]
        world.settle()
        monkeypatch.setattr(branch_partition, "headers_of", counted)
        world.sim.kill(first)
        world.sim.run_until(lambda: any(world.partition(each).reign is not None for each in world.sim.lives))
        assert sorted(set(read)) == offsets[30:]
        for number in (29, 33):
            repeated = world.write(world.primary(), b"%d" % number, (1000, 0, number))
            assert repeated == offsets[number]
        world.write(world.primary(), b"34", (1000, 0, 34))


def test_whoever_does_not_reign_names_nobody_else() -> None:
    """Without generations clients cannot tell which of two hints is newer; they ask for metadata instead."""
    with BranchSchedule() as world:
        other = next(number for number in world.sim.lives if number != world.primary())
        body = {**produce_request("t", 0, [b"x"], 0, -1, None), "timeout_ms": 1000}
        answer = world.ask(other, ApiKey.PRODUCE, 10, body)
        row = answer["responses"][0]["partition_responses"][0]
        assert row["error_code"] == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert row["current_leader"] == {"leader_id": -1, "leader_epoch": -1}
        assert answer["node_endpoints"] == []


@pytest.mark.parametrize("others", [(1, 2), (1, 3), (2, 3)])
def test_a_cut_between_two_of_three_does_not_open_a_lane_for_every_record(others: tuple[int, int]) -> None:
    with BranchSchedule() as world:
        world.sim.net.cut(*map(BrokerId, others))
        for number in range(60):
            world.sim.run(100)
            for broker_id in world.sim.lives:
                world.send(broker_id, b"%d" % number)
        assert len(world.partition(1).branches.opened) < LANES_MAX
        world.sim.net.heal()
        world.settle()


@pytest.mark.parametrize(("remover", "removed"), [("lone", 3), ("other", 5), ("both", 3)])
def test_records_that_a_side_removed_stay_removed_when_sides_join(remover: str, removed: int) -> None:
    """Whole batches of five, or some records of one."""
    with BranchSchedule() as world:
        sides = {"lone": world.primary()}
        world.write(sides["lone"], b"common")
        world.cut_off(sides["lone"])
        sides["other"] = world.primary(among=[each for each in world.sim.lives if each != sides["lone"]])
        expected = set()
        for name, broker_id in sides.items():
            first = world.write_batch(broker_id, [b"%s %d" % (name.encode(), each) for each in range(5)])
            world.write_batch(broker_id, [b"%s %d" % (name.encode(), each) for each in range(5, 8)])
            left = removed if remover in (name, "both") else 0
            if left:
                world.remove_below(broker_id, first + left)
            expected |= {b"%s %d" % (name.encode(), each) for each in range(left, 8)}
        world.sim.net.heal()
        world.settle()
        assert sorted(world.values()) == sorted(expected)
        assert len(world.partition(1).branches.opened) == 3, "the first attempt to join them failed"
        world.write(world.primary(), b"last")


@pytest.mark.parametrize("remover", ["lone", "other"])
def test_a_batch_of_both_sides_is_there_once_though_one_has_removed_some_of_it(remover: str) -> None:
    """Seed 77 of the simulation had such records twice."""
    with BranchSchedule() as world:
        sides = {"lone": world.primary()}
        world.cut_off(sides["lone"])
        sides["other"] = world.primary(among=[each for each in world.sim.lives if each != sides["lone"]])
        for name, broker_id in sides.items():
            first = world.write_batch(broker_id, [b"%d" % each for each in range(5)], (1000, 0, 0))
            world.write(broker_id, name.encode())
            if name == remover:
                world.remove_below(broker_id, first + 3)
        world.sim.net.heal()
        world.settle()
        values = world.values()
        assert len(values) == len(set(values))
        assert {b"3", b"4", b"lone", b"other"} <= set(values)


def test_a_copy_that_begins_in_the_middle_of_a_batch_becomes_whole() -> None:
    with BranchSchedule() as world:
        away = next(number for number in world.sim.lives if number != world.primary())
        world.sim.kill(away)
        first = world.write_batch(world.primary(), [b"%d" % each for each in range(5)])
        world.write(world.primary(), b"last")
        world.remove_below(world.primary(), first + 3)
        world.sim.start(away)
        world.settle()
        assert world.values() == [b"3", b"4", b"last"]


def test_a_side_that_was_joined_goes_when_the_line_begins_above_it() -> None:
    with BranchSchedule() as world:
        world.fall_apart()
        world.sim.net.heal()
        world.settle()
        primary = world.primary()
        world.remove_below(primary, int(world.partition(primary).high_watermark))
        for number in world.sim.lives:
            partition = world.partition(number)
            assert list(partition.lanes) == [partition.view.lane]
        world.write(primary, b"last")
        assert world.values() == [b"last"]


def take_in(world: BranchSchedule, broker_id: int, tips: dict[BrokerId, Tip]) -> None:
    """As if those had said where their lines end, and had gone then."""
    life = world.sim.lives[broker_id]
    branches = life.broker.branches
    assert branches is not None
    assert branches.peers is not None
    seat = branches.peers.seat(*world.partition(broker_id).key)
    seat.quiet_until_ms = world.sim.clock.monotonic_ms() + 60_000
    done = life.loop.create_task(branches.peers.reigning.take_in(seat, tips))
    world.sim.run_until(done.done)
    done.result()
    seat.quiet_until_ms = 0


def test_a_batch_whose_first_copy_cannot_be_had_is_there_once_in_the_end() -> None:
    with BranchSchedule() as world:
        primary = world.primary()
        late = next(number for number in world.sim.lives if number != primary)
        world.write(primary, b"first", (1000, 0, 0))
        world.sim.run(1000)
        world.sim.net.isolate(BrokerId(late))
        world.write(primary, b"twice", (1000, 0, 1))
        take_in(world, late, {BrokerId(primary): world.partition(primary).tip})
        world.write(late, b"twice", (1000, 0, 1))
        world.sim.net.heal()
        world.settle()
        assert sorted(world.values()) == [b"first", b"twice"]


def test_a_reign_does_not_end_for_records_that_cannot_be_had() -> None:
    with BranchSchedule() as world:
        primary = world.primary()
        lone = next(number for number in world.sim.lives if number != primary)
        world.write(primary, b"common")
        world.sim.run(1000)
        world.cut_off(lone)
        world.write(primary, b"more")
        reign = world.partition(lone).reign
        take_in(world, lone, {BrokerId(primary): world.partition(primary).tip})
        assert world.partition(lone).reign == reign
        world.write(lone, b"goes on")
        world.sim.net.heal()
        world.settle()
        assert sorted(world.values()) == [b"common", b"goes on", b"more"]


def test_what_was_written_aside_goes_if_another_broker_is_about_to_reign() -> None:
    with BranchSchedule() as world:
        expected = world.fall_apart()
        world.sim.net.heal()
        while not (begun := [number for number in world.sim.lives if world.is_joining(number)]):
            world.sim.run(1)
        partition = world.partition(begun[0])
        (aside,) = [lane for lane in partition.lanes if lane not in partition.branches.opened]
        branches = world.sim.lives[begun[0]].broker.branches
        assert branches is not None
        assert branches.peers is not None
        branches.peers.seat(*partition.key).is_unwelcome = True
        world.settle()
        assert aside not in partition.branches.opened
        assert not world.sim.machines[begun[0]].disk.exists(f"{partition.lanes.folder}/{lane_folder(aside)}")
        assert sorted(world.values()) == expected


def test_a_producer_that_begins_on_a_side_without_the_quorum_gets_an_id_that_nobody_else_has() -> None:
    with BranchSchedule() as world:
        lone = world.primary()
        world.sim.run(10_000)  # Which topics there are is known to its disk by now.
        world.cut_off(lone)
        taken = [producer_id(world, number) for number in (*world.sim.lives, lone, lone)]
        world.write(lone, b"by a new producer", (taken[-1], 0, 0))
        world.sim.kill(lone)
        world.sim.start(lone)
        world.sim.run_until(lambda: world.sim.lives[lone].is_ready)
        taken.append(producer_id(world, lone))
        assert len(set(taken)) == len(taken)
        assert max(taken) < JSON_INTEGER_MAX


def producer_id(world: BranchSchedule, broker_id: int) -> int:
    asked = {
        "transactional_id": None,
        "transaction_timeout_ms": 1000,
        "producer_id": -1,
        "producer_epoch": -1,
    }
    answer = world.ask(broker_id, ApiKey.INIT_PRODUCER_ID, 4, asked)
    assert answer["error_code"] == ErrorCode.NONE, ErrorCode(answer["error_code"])
    return int(answer["producer_id"])


def test_a_broker_that_comes_back_on_a_side_without_the_quorum_takes_records_there() -> None:
    with BranchSchedule() as world:
        lone = world.primary()
        world.write(lone, b"common")
        world.sim.run(10_000)  # Which topics there are is known to its disk by now.
        world.cut_off(lone)
        world.write(lone, b"before")
        world.sim.kill(lone)
        world.sim.start(lone)
        world.sim.run_until(lambda: world.sim.lives[lone].is_ready)
        world.sim.run_until(lambda: world.partition(lone).reign is not None)
        world.write(lone, b"behind")
        world.sim.net.heal()
        world.sim.run_until(lambda: world.sim.lives[lone].broker.peering.has_joined)
        world.settle()
        assert sorted(world.values()) == [b"before", b"behind", b"common"]
