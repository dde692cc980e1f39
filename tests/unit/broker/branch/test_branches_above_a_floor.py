"""Topics in mode branch whose older records lie in the object store: what is below the floor is served from there, on
every side of a split."""

import random
from collections.abc import Iterator

import pytest

from anabranch.broker.branch.partition import BranchPartition
from anabranch.broker.branch.served_records import records_behind
from anabranch.cli.branch.diff import compare
from anabranch.cli.branch.facts import put_together
from anabranch.cluster.metadata.table import MetadataTable
from anabranch.modes.branch.history import records_between
from anabranch.record.records import records_of
from anabranch.values import BrokerId, Offset
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode as E
from support.broker_cluster import close_all
from support.floor_cluster import RECORDS, FloorCluster
from support.form_cluster import EARLIEST, LATEST, MAX_TIMESTAMP

ALONE = b"alone"
TOGETHER = b"together"


@pytest.fixture(autouse=True)
def clusters_end() -> Iterator[None]:
    yield
    close_all()


def partition_at(cluster: FloorCluster, broker: int) -> BranchPartition:
    found = cluster.broker(broker).topics.partition("t", 0)
    assert isinstance(found, BranchPartition)
    return found


def leader_and_other(cluster: FloorCluster) -> tuple[int, int]:
    leader = cluster.leader_of(0)
    assert leader is not None
    return leader, next(each for each in cluster.lives if each not in (leader, cluster.leader_id))


# --- going over ---------------------------------------------------------------------------------------------------


def test_records_and_producers_go_from_the_store_into_branches_under_load() -> None:
    cluster = FloorCluster("object", 2)
    for _ in range(RECORDS):
        cluster.produce(0)
        cluster.produce(1)
    cluster.change("branch", "branched", partitions=2)
    assert cluster.floor >= RECORDS
    for index in (0, 1):
        cluster.produce(index, repeat=True)
        cluster.check(index)
        cluster.produce(index)
        cluster.produce(index, repeat=True)
        cluster.check(index)


def test_a_ring_above_the_store_goes_over_with_both_parts() -> None:
    cluster = FloorCluster.in_branches(kept=10)
    placement = cluster.placement()
    assert placement.lane_start == placement.floor < placement.start - 9
    cluster.produce(repeat=True)
    cluster.check()
    copy, table = MetadataTable(), cluster.leader.metadata.table
    copy.restore(table.snapshot())
    assert copy.topics == table.topics


def test_a_producer_that_last_wrote_to_the_store_is_known_in_branches() -> None:
    cluster = FloorCluster("object")
    for _ in range(RECORDS):
        cluster.produce()
    assert cluster.alter("branch")["error_code"] == 0
    cluster.until(lambda: cluster.is_done("branched") and cluster.reigns(cluster.leader_of(0)))
    assert cluster.placement().start == cluster.floor == RECORDS, "brokers kept no record at all"
    assert cluster.offset(LATEST) == RECORDS, "whoever has read the store is at the end"
    cluster.produce(repeat=True)
    assert cluster.offset(LATEST) == RECORDS
    cluster.produce()
    cluster.check()


def test_everything_is_there_after_restarts_and_on_another_disk() -> None:
    cluster = FloorCluster.in_branches(kept=5)
    for broker in (1, 2, 3):
        cluster.kill(broker)
        cluster.start(broker)
        cluster.until(lambda: cluster.leader_id is not None and cluster.is_done("branched"))
        cluster.produce()
        cluster.run(3000)
        cluster.check()
    lost = next(each for each in (2, 3) if each != cluster.leader_id)
    cluster.kill(lost, lose_disk=True)
    cluster.start(lost)
    cluster.until(lambda: cluster.leader_id is not None and cluster.is_done("branched"))
    cluster.produce()
    cluster.run(8000)
    for broker in {1, 2, 3} - {lost}:
        cluster.kill(broker)
    cluster.run(5000)
    cluster.check()
    cluster.produce()
    cluster.check()


def test_a_broker_that_slept_through_all_of_it_serves_everything() -> None:
    cluster = FloorCluster("ring")
    for _ in range(RECORDS):
        cluster.produce()
    cluster.run(1000)
    leader = cluster.leader_of(0)
    away = next(each for each in (1, 2, 3) if each not in (leader, cluster.leader_id))
    cluster.kill(away)
    cluster.change("object", "stored")
    cluster.change("branch", "branched")
    cluster.start(away)
    cluster.until(lambda: cluster.is_done("branched"))
    cluster.produce()
    cluster.run(5000)
    for broker in {1, 2, 3} - {away}:
        cluster.kill(broker)
    cluster.run(5000)
    cluster.check()


@pytest.mark.parametrize("seed", range(4))
def test_brokers_that_are_killed_on_the_way_cost_no_record(seed: int) -> None:
    rng = random.Random(seed)
    cluster = FloorCluster("object", seed=seed)
    for _ in range(rng.randrange(30)):
        cluster.produce()
    cluster.change_among_deaths("branch", "branched", rng)
    cluster.check()


def test_it_can_be_called_off_on_the_way() -> None:
    cluster = FloorCluster("object")
    for _ in range(RECORDS):
        cluster.produce()
    assert cluster.alter("branch")["error_code"] == 0
    assert cluster.alter("object")["error_code"] == 0
    cluster.until(lambda: cluster.is_done("stored"))
    cluster.run(2000)
    assert cluster.forms() == {"stored"}
    cluster.produce()
    cluster.check()


def test_readers_get_over_numbers_that_no_record_has_below_the_floor() -> None:
    """What came out of branches ends behind all lanes, where nobody has written anything since."""
    cluster = FloorCluster.in_branches(kept=3)
    for mode, form in (("object", "stored"), ("branch", "branched")):
        assert cluster.alter(mode)["error_code"] == 0
        cluster.until(lambda form=form: cluster.is_done(form), 60_000)  # type: ignore[misc]
    floor = cluster.floor
    assert floor > 2**32
    assert not any(
        floor - 1 in range(row.base_offset, row.next_offset)
        for row in cluster.leader.metadata.table.objects.rows(cluster.key(), Offset(0), 1000)
    )
    cluster.produce()
    cluster.produce(repeat=True)
    cluster.check()
    assert records_left(cluster) == len(cluster.written[0]), "lag does not count what lies between lanes"


def test_lag_counts_records_of_lanes_that_a_first_lane_has_in_it() -> None:
    cluster = FloorCluster.in_branches(kept=3)
    for mode, form in (("ring", "kept"), ("branch", "branched")):
        cluster.change(mode, form)
    cluster.check()
    assert records_left(cluster) == len(cluster.written[0])


def records_left(cluster: FloorCluster) -> int:
    """How many a group has to read that has read none."""
    cluster.until(lambda: cluster.leader_of(0) is not None and cluster.reigns(cluster.leader_of(0)))
    leader = cluster.leader_of(0)
    assert leader is not None
    partition, branches = partition_at(cluster, leader), cluster.broker(leader).branches
    assert branches is not None
    cluster.until(lambda: partition.is_settled)
    cluster.do(branches.gaps.find([partition]))
    return records_behind(branches.gaps, partition, 0)


# --- a split ------------------------------------------------------------------------------------------------------


def test_both_sides_of_a_split_serve_what_is_below_the_floor() -> None:
    cluster = FloorCluster.in_branches(kept=3)
    before = list(cluster.written[0])
    half_ms = records_at(cluster, RECORDS // 2)
    leader, other = leader_and_other(cluster)
    cluster.cut_off(leader)
    cluster.write(ALONE, leader)
    cluster.write(TOGETHER, other)
    for side, own in ((leader, ALONE), (other, TOGETHER)):
        assert cluster.read_at(side) == [*before, own]
        assert cluster.offset(EARLIEST) == 0
        served_by = cluster.leader_of(0)
        assert served_by is not None
        assert cluster.offset_of_time(half_ms, served_by) == (0, RECORDS // 2, half_ms)
        code, newest, _ = cluster.offset_of_time(MAX_TIMESTAMP, served_by)
        assert code == 0
        assert newest > cluster.placement().start
        assert cluster.offset_of_time(LATEST, served_by)[:2] == (0, newest + 1)
    cluster.join_again()
    found = cluster.values()
    assert found[: len(before)] == before
    assert sorted(found[len(before) :]) == [ALONE, TOGETHER]
    cluster.produce()
    assert sorted(cluster.values()) == sorted([*cluster.written[0], ALONE, TOGETHER])


def records_at(cluster: FloorCluster, offset: int) -> int:
    """The time of a record in the store."""
    data = bytes(cluster.fetch(offset)["records"])
    record = next(iter(records_of(data[: int.from_bytes(data[8:12], "big") + 12])))
    assert record.offset == offset
    return record.timestamp


def test_a_reader_below_the_floor_goes_on_above_it_wherever_it_is() -> None:
    cluster = FloorCluster.in_branches()
    leader, other = leader_and_other(cluster)
    cluster.cut_off(leader)
    cluster.write(ALONE, leader)
    cluster.write(TOGETHER, other)
    assert cluster.read_at(leader, RECORDS - 2)[-1] == ALONE
    begun = cluster.read_at(other, RECORDS - 2)
    assert begun == [*cluster.written[0][RECORDS - 2 :], TOGETHER]
    at = cluster.offset(LATEST)
    cluster.join_again()
    assert ALONE in cluster.values(0, at), "it goes on where it is, and misses nothing"


def test_a_broker_that_starts_on_a_side_of_its_own_serves_everything() -> None:
    cluster = FloorCluster.in_branches(kept=3)
    alone = next(each for each in (2, 3) if each != cluster.leader_id)
    cluster.run(3000)
    cluster.kill(alone)
    cluster.net.isolate(BrokerId(alone))
    cluster.start(alone)
    cluster.until(lambda: cluster.reigns(alone), 30_000)
    assert cluster.read_at(alone) == cluster.written[0]
    cluster.write(ALONE, alone)
    assert cluster.read_at(alone) == [*cluster.written[0], ALONE]
    cluster.join_again()
    assert sorted(cluster.values()) == sorted([*cluster.written[0], ALONE])


# --- deleting -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beyond", [-5, 0, 2])
def test_records_are_deleted_below_the_floor_at_it_and_above(beyond: int) -> None:
    cluster = FloorCluster.in_branches(kept=5)
    start = cluster.floor + beyond
    assert cluster.delete_below(start) == start
    cluster.check()
    assert cluster.fetch_code(start - 1) == E.OFFSET_OUT_OF_RANGE
    cluster.kill(cluster.follower_id)
    cluster.produce()
    cluster.check()
    if beyond > 0:
        for life in cluster.lives.values():
            cluster.do(life.broker.housekeeping.retain())
        assert cluster.head().start == cluster.head().end, "nobody needs what lies in the store any more"


def test_a_side_without_a_majority_deletes_above_the_floor_only() -> None:
    cluster = FloorCluster.in_branches(kept=5)
    leader, other = leader_and_other(cluster)
    cluster.cut_off(leader)
    code, _ = cluster.delete_at(leader, cluster.floor - 5)
    assert code == E.NOT_CONTROLLER
    assert cluster.read_at(leader) == cluster.written[0]
    start = cluster.floor + 2
    assert cluster.delete_at(leader, start) == (0, start)
    assert cluster.read_at(leader, start) == cluster.written[0][start:]
    assert cluster.read_at(other) == cluster.written[0], "the others do not know yet"
    cluster.join_again()
    assert cluster.offset(EARLIEST) == start
    cluster.deleted[0] = start
    cluster.check()


def test_retention_takes_what_is_below_the_floor() -> None:
    cluster = FloorCluster.in_branches(kept=2, **{"retention.ms": "3600000"})
    cluster.clock.jump_wall(3 * 3_600_000)
    cluster.run(5000)
    cluster.until(lambda: cluster.leader_of(0) is not None and cluster.reigns(cluster.leader_of(0)))
    for life in cluster.lives.values():
        objects = life.broker.objects
        assert objects is not None
        cluster.do(life.broker.housekeeping.retain())
        if life.broker.metadata.is_leader:
            cluster.do(objects.upkeep.retain())
    cluster.run(1000)
    assert cluster.head().start == cluster.head().end
    assert cluster.offset(EARLIEST) >= cluster.floor


# --- seeing it ----------------------------------------------------------------------------------------------------


def test_every_branch_shows_what_is_below_the_floor() -> None:
    cluster = FloorCluster.in_branches(kept=3)
    before, first_end = list(cluster.written[0]), cluster.placement().start
    leader, other = leader_and_other(cluster)
    cluster.cut_off(leader)
    cluster.write(ALONE, leader)
    cluster.write(TOGETHER, other)
    cluster.join_again()
    branches = partition_at(cluster, leader).branches
    shown = {lane: values_of(cluster, leader, f"t@{lane}") for lane in branches.opened}
    assert shown[min(shown)] == before[:first_end]
    assert [*before, ALONE] in shown.values()
    assert [*before, TOGETHER] in shown.values()
    view = f"t@{min(shown)}"
    assert cluster.offset_of_time(EARLIEST, leader, view)[:2] == (0, 0)
    assert cluster.offset_of_time(1, leader, view)[:2] == (0, 0)
    assert cluster.fetch_at(leader, 0, "t@999")["error_code"] == E.UNKNOWN_TOPIC_OR_PARTITION


def values_of(cluster: FloorCluster, broker: int, topic: str) -> list[bytes]:
    """As a reader of this broker, until it is at the end."""
    found: list[bytes] = []
    at = 0
    for _ in range(200):
        row = cluster.fetch_at(broker, at, topic)
        assert row["error_code"] == 0, E(row["error_code"])
        data = row["records"] or b""
        position = 0
        while position < len(data):
            size = int.from_bytes(data[position + 8 : position + 12], "big") + 12
            for record in records_of(data[position : position + size]):
                if record.offset >= at:
                    found.append(bytes(record.value or b""))
                    at = record.offset + 1
            position += size
        if at >= row["high_watermark"]:
            return found
        cluster.run(50)
    raise AssertionError(f"a reader of {topic} waits at {at}")


def test_records_are_counted_from_below_the_floor() -> None:
    cluster = FloorCluster.in_branches(kept=3)
    count = len(cluster.written[0])
    leader, other = leader_and_other(cluster)
    branches = cluster.broker(leader).branches
    assert branches is not None
    partition = partition_at(cluster, leader)
    cluster.until(lambda: partition.is_settled)
    behind = {
        at: records_behind(branches.gaps, partition, at) for at in (0, 5, cluster.floor, cluster.floor + 1)
    }
    assert behind == {at: count - at for at in behind}
    cluster.cut_off(leader)
    cluster.write(ALONE, leader)
    cluster.write(TOGETHER, other)
    answers = {
        broker: cluster.ask(broker, ApiKey.DESCRIBE_BRANCHES, 0, {"topics": None})
        for broker in (leader, other)
    }
    [facts] = put_together(answers)
    assert records_between(facts.line, 0, 2**63) == count + 1
    for lane in facts.branches.opened:
        compared = compare(facts, lane, None)
        assert compared is not None
        assert max(compared.counts()) <= 2, "what lies in the store is in every branch"
