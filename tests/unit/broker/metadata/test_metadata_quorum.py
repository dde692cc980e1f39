"""Several metadata logs as one quorum, over disks that crash and a network that fails: what was acknowledged stays."""

import asyncio
import errno
import json

import pytest

from anabranch.broker.metadata import metadata_log
from anabranch.broker.metadata.metadata_opener import METADATA_ID
from anabranch.broker.topics.stored_state import partition_key
from anabranch.cluster.metadata.entries import encode_entry
from anabranch.cluster.raft.messages import Members, Snapshot
from anabranch.errors import NotControllerError, QuorumBusyError, StorageError
from support.metadata_world import DATA, Node, World, in_world, topic_named


@pytest.fixture
def few_per_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_log, "ENTRIES_PER_SNAPSHOT", 8)


@pytest.mark.parametrize("count", [1, 3, 5])
@pytest.mark.parametrize("seed", range(12))
def test_no_acknowledged_change_is_lost_in_trouble(few_per_snapshot: None, seed: int, count: int) -> None:
    async def test(world: World) -> None:
        await world.grow(count)
        world.loss = world.chance.choice([0, 0.02, 0.1])
        await world.trouble(500)
        await world.calm()

    counts = in_world(1000 * count + seed, test)
    assert counts["acknowledged"] > 20, counts
    assert counts["crashes"] > 3, counts


def test_leader_commits_and_everybody_applies_the_same() -> None:
    async def test(world: World) -> None:
        leader = await world.three()
        for _ in range(5):
            await world.commit(leader)
        await asyncio.sleep(1)
        assert [node.names for node in world.nodes.values()] == [leader.names] * 3
        assert {node.metadata.leader_id for node in world.nodes.values() if node.metadata} == {leader.id}
        assert leader.metadata is not None
        assert len(leader.metadata.members.voters) == 3

    in_world(1, test)


def test_follower_refuses_changes_and_knows_who_leads() -> None:
    async def test(world: World) -> None:
        leader = await world.three()
        follower = next(node for node in world.nodes.values() if node is not leader)
        assert follower.metadata is not None
        with pytest.raises(NotControllerError):
            await world.commit(follower)
        assert follower.metadata.leader_id == leader.id

    in_world(1, test)


def test_death_of_the_leader_makes_another_one_lead() -> None:
    async def test(world: World) -> None:
        old = await world.three()
        await world.commit(old)
        old.crash()
        new = await world.leader()
        assert new is not old
        await world.commit(new)
        old.boot()
        await world.calm()
        assert old.names == new.names

    in_world(2, test)


def test_outcome_is_unknown_if_the_leader_is_cut_off_and_known_to_everybody_later() -> None:
    async def test(world: World) -> None:
        old = await world.three()
        world.split({old.id}, set(world.nodes) - {old.id})
        with pytest.raises(QuorumBusyError, match="not known"):
            await world.commit(old)
        new = await world.leader()
        assert new is not old
        with pytest.raises(NotControllerError):
            await world.commit(old)
        await world.commit(new)
        await world.calm()
        assert old.names == ["topic-3", "topic-4"]  # What the old one had written alone gave way.

    in_world(3, test)


def test_laggard_gets_a_snapshot_and_what_disagrees_on_its_disk_goes(few_per_snapshot: None) -> None:
    async def test(world: World) -> None:
        old = await world.three()
        world.split({old.id}, set(world.nodes) - {old.id})
        with pytest.raises(QuorumBusyError):
            await world.commit(old)
        new = await world.leader()
        for _ in range(30):
            await world.commit(new)
        assert old.metadata is not None
        assert old.names == []
        seen: list[object] = []
        old.metadata.subscribe(lambda offset, change: seen.append(change))
        await world.calm()
        assert seen[0] is None, "the first thing it heard of was not the whole table"
        assert old.names == new.names
        log = old.metadata.partition.log
        assert log.start_offset > 20
        old.restart()
        await world.calm()

    assert in_world(4, test)["snapshots installed"] >= 1


def test_crash_at_any_step_of_taking_over_a_snapshot_is_survived(few_per_snapshot: None) -> None:
    async def test(world: World) -> None:
        leader = await world.three()
        lost = next(node for node in world.nodes.values() if node is not leader)
        steps, dark = 0, True
        while dark:
            steps += 1
            world.split(set(world.nodes) - {lost.id}, {lost.id})
            leader = await world.leader()
            for _ in range(20):
                await world.commit(leader)
            before = world.counts["snapshots installed"]
            lost.disk.crash_at = lost.disk.operations + steps
            world.cut = set()
            await asyncio.sleep(6)  # The leader takes its time until it sends a snapshot again.
            dark = lost.disk.is_dark
            lost.crash()
            lost.boot()
            assert lost.metadata is not None
            log = lost.metadata.partition.log
            assert log.start_offset <= lost.metadata.quorum.log.start <= log.end_offset
            if not dark:
                assert world.counts["snapshots installed"] > before
        assert steps > 10
        await world.calm()

    in_world(5, test)


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_member_whose_disk_fails_says_nothing_more(operation: str) -> None:
    async def test(world: World) -> None:
        old = await world.three()
        assert old.metadata is not None
        old.disk.fail_next(operation, path_contains="__cluster_metadata")  # type: ignore[arg-type]
        with pytest.raises(StorageError):
            await world.commit(old)
        assert (old.metadata.is_leader, old.metadata.leader_id) == (False, None)
        with pytest.raises(StorageError):
            await world.commit(old)
        new = await world.leader()
        assert new is not old
        await world.commit(new)
        old.restart()
        await world.calm()

    in_world(6, test)


@pytest.mark.parametrize("path", ["__cluster_metadata", "quorum-state"])
def test_member_whose_disk_is_full_stands_still_until_there_is_room(path: str) -> None:
    async def test(world: World) -> None:
        old = await world.three()
        full = (
            old if path != "quorum-state" else next(each for each in world.nodes.values() if each is not old)
        )
        assert full.metadata is not None
        full.disk.fail_next("write", errno.ENOSPC, path_contains=path, times=8)
        if full is old:
            with pytest.raises(QuorumBusyError):
                await world.commit(old)
            with pytest.raises(StorageError):
                await world.commit(old)
        else:
            old.crash()
            await asyncio.sleep(4)
        assert (full.metadata.is_leader, full.metadata.leader_id) == (False, None)
        new = await world.leader()
        assert new is not old
        await world.commit(new)
        await asyncio.sleep(10)
        assert not full.metadata.is_ended
        assert full.metadata.leader_id is not None
        await world.calm()

    in_world(6, test)


def test_member_that_stops_while_its_disk_is_full_does_not_wait_for_room() -> None:
    async def test(world: World) -> None:
        old = await world.three()
        assert old.metadata is not None
        old.disk.fail_next("write", errno.ENOSPC, path_contains="__cluster_metadata", times=1000)
        with pytest.raises(QuorumBusyError):
            await world.commit(old)
        old.metadata.leave()
        await old.metadata.idle()
        assert old.metadata.is_ended
        old.disk.forget_faults()
        old.restart()
        await world.calm()

    in_world(6, test)


def test_vote_that_cannot_be_written_is_not_given() -> None:
    async def test(world: World) -> None:
        leader = await world.three()
        others = [node for node in world.nodes.values() if node is not leader]
        for node in others:
            node.disk.fail_next("write", path_contains="quorum-state")
        leader.crash()
        await asyncio.sleep(20)
        assert any(node.metadata is not None and node.metadata.is_ended for node in others)
        assert not any(node.metadata is not None and node.metadata.is_leader for node in others)

    in_world(7, test)


def test_read_index_is_asked_of_the_leader_and_fails_where_there_is_none() -> None:
    async def test(world: World) -> None:
        leader = await world.three()
        follower = next(node for node in world.nodes.values() if node is not leader)
        assert follower.metadata is not None
        assert leader.metadata is not None
        for _ in range(20):
            await world.commit(leader)
            await follower.metadata.caught_up()
            assert follower.names == leader.names
            await leader.metadata.caught_up()
        world.split({follower.id}, set(world.nodes) - {follower.id})
        await world.commit(leader)
        with pytest.raises(QuorumBusyError):
            await follower.metadata.caught_up()

    in_world(8, test)


def test_old_leader_that_is_cut_off_answers_no_read() -> None:
    async def test(world: World) -> None:
        old = await world.three()
        assert old.metadata is not None
        world.split({old.id}, set(world.nodes) - {old.id})
        with pytest.raises(QuorumBusyError):
            await old.metadata.caught_up()

    in_world(9, test)


def test_leadership_is_handed_over() -> None:
    async def test(world: World) -> None:
        old = await world.three()
        to = next(node for node in world.nodes.values() if node is not old)
        assert old.metadata is not None
        assert to.metadata is not None
        await asyncio.sleep(1)
        assert old.metadata.transfer(to.member)
        await asyncio.sleep(0.5)  # Less than an election would take.
        assert to.metadata.is_leader
        await world.commit(to)

    in_world(10, test)


def test_joining_broker_waits_to_be_told_even_after_a_crash() -> None:
    async def test(world: World) -> None:
        founder = world.add(1)
        for _ in range(3):
            await world.commit(founder)
        node = world.add(2)
        await asyncio.sleep(5)
        assert node.metadata is not None
        assert (node.metadata.is_leader, node.metadata.leader_id, node.names) == (False, None, [])
        await world.change_members(node.member, "learner")
        await asyncio.sleep(1)
        assert node.names == founder.names
        # Only the first entries have reached its disk, which say nothing of members.
        node.metadata.partition.log.firm_offset = None
        node.metadata.partition.log.truncate_to(node.metadata.quorum.log.start + 2)  # type: ignore[arg-type]
        node.crash()
        world.cut = {(1, 2), (2, 1)}
        node.boot()
        await asyncio.sleep(5)
        assert node.metadata.members == Members(frozenset())
        assert not node.metadata.is_leader

    in_world(11, test)


def test_entries_that_come_together_share_a_sync() -> None:
    async def test(world: World) -> None:
        founder = world.add(1)
        for _ in range(40):
            await world.commit(founder)
        node = world.add(2)
        await world.change_members(node.member, "learner")
        await asyncio.sleep(1)
        assert node.names == founder.names
        assert node.core.syncer.syncs_total < 10

    in_world(12, test)


def test_entries_that_are_torn_in_a_power_cut_come_again() -> None:
    """Several were written with one sync that never came: some are whole, others not, in any order."""

    async def test(world: World) -> None:
        founder = world.add(1)
        metadata = founder.metadata
        assert metadata is not None
        for number in range(12):
            async with metadata.lock:
                entry = {**topic_named(f"wide-{number}"), "overrides": {"x": "y" * 700}}
                await metadata.commit(entry)
        for attempt in range(40):
            node = world.add(100 + attempt)
            await world.change_members(node.member, "learner")
            while node.disk.exists(f"{DATA}/__cluster_metadata-0") and node.metadata is not None:
                if node.metadata.partition.log.end_offset > 5:
                    break
                await asyncio.sleep(0.001)
            node.crash()
            node.boot()
            await asyncio.sleep(1)
            assert node.names == founder.names
            await world.change_members(node.member, "")
            node.crash()

    in_world(13, test)


async def write_alone(world: World, node: Node) -> None:
    """Entries of a leader that nobody else gets, on its disk."""
    assert node.metadata is not None
    world.split({node.id}, set(world.nodes) - {node.id})
    node.metadata.quorum.propose([encode_entry(topic_named(f"lost-{number}")) for number in range(9)])
    with pytest.raises(QuorumBusyError):
        await world.commit(node)
    log = node.metadata.partition.log
    assert log.synced_offset == log.end_offset


def test_entries_in_the_place_of_others_are_synced_before_they_count() -> None:
    async def test(world: World) -> None:
        old = await world.three()
        await write_alone(world, old)
        new = await world.leader()
        for _ in range(3):
            await world.commit(new)
        await world.calm()  # The world sees to it that nothing is applied before it is synced.
        assert old.names == new.names
        assert "lost-1" not in old.names

    in_world(14, test)


def test_recovery_does_not_miss_what_was_cut() -> None:
    async def test(world: World) -> None:
        old = await world.three()
        await write_alone(world, old)
        assert old.metadata is not None
        key = partition_key(METADATA_ID, 0)
        old.state.write_recovery_points({key: old.metadata.partition.recovery_mark})
        new = await world.leader()
        world.cut = set()
        await asyncio.sleep(3)
        assert old.metadata.partition.log.end_offset < 9
        old.crash()
        old.boot()  # It would be refused as one that has lost entries that were safe.
        await world.commit(new)
        await world.calm()

    in_world(17, test)


def test_topic_of_ten_thousand_partitions_passes_as_entry_and_as_snapshot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replicas = [[1, 2, 3] for _ in range(10_000)]

    async def test(world: World) -> None:
        leader = await world.three()
        metadata = leader.metadata
        assert metadata is not None
        late = next(node for node in world.nodes.values() if node is not leader)
        other = next(node for node in world.nodes.values() if node not in (leader, late))
        world.split({leader.id, other.id}, {late.id})
        for number in range(30):
            async with metadata.lock:
                entry = {**topic_named(f"wide-{number}", 10_000), "replicas": replicas}
                await metadata.commit(entry)
        await asyncio.sleep(1)
        assert len(other.names) == 30
        monkeypatch.setattr(metadata_log, "ENTRIES_PER_SNAPSHOT", 8)
        await world.commit(leader)
        world.cut = set()
        await asyncio.sleep(5)
        assert late.names == leader.names

    assert in_world(15, test)["snapshots installed"]


def test_snapshot_that_is_no_table_ends_the_member_and_harms_no_disk(few_per_snapshot: None) -> None:
    async def test(world: World) -> None:
        leader = await world.three()
        lost = next(node for node in world.nodes.values() if node is not leader)
        world.split(set(world.nodes) - {lost.id}, {lost.id})
        for _ in range(20):
            await world.commit(leader)
        assert leader.metadata is not None
        log = leader.metadata.quorum.log
        good: Snapshot = log.snapshot
        log.snapshot = good._replace(data=json.dumps({"topics": 7}).encode())
        world.cut = set()
        await asyncio.sleep(6)
        assert lost.metadata is not None
        assert lost.metadata.is_ended
        log.snapshot = log.snapshot._replace(data=good.data) if log.snapshot.end == good.end else log.snapshot
        lost.restart()
        await world.calm()

    in_world(16, test)


def test_what_was_known_to_be_committed_is_in_the_table_at_the_start() -> None:
    async def test(world: World) -> None:
        leader = await world.three()
        for _ in range(5):
            await world.commit(leader)
        await asyncio.sleep(1)
        node = next(node for node in world.nodes.values() if node is not leader)
        assert node.metadata is not None
        key = partition_key(METADATA_ID, 0)
        node.state.write_recovery_points({key: node.metadata.partition.recovery_mark})
        world.split({node.id}, set(world.nodes) - {node.id})
        node.crash()
        node.boot()
        assert node.names == leader.names

    in_world(18, test)


def test_member_that_leaves_lets_nobody_wait_and_says_nothing() -> None:
    async def test(world: World) -> None:
        old = await world.three()
        metadata = old.metadata
        assert metadata is not None
        world.split({old.id}, set(world.nodes) - {old.id})
        waiting = asyncio.create_task(world.commit(old))
        await asyncio.sleep(0.01)
        metadata.leave()
        with pytest.raises(NotControllerError, match="stops"):
            await waiting
        await metadata.idle()
        world.cut = set()
        new = await world.leader()
        await world.commit(new)
        await asyncio.sleep(1)
        assert old.names == []
        assert (metadata.is_leader, metadata.leader_id) == (False, None)

    in_world(19, test)


def test_leader_knows_how_far_the_others_are() -> None:
    async def test(world: World) -> None:
        leader = await world.three()
        assert leader.metadata is not None
        await world.commit(leader)
        await asyncio.sleep(1)
        end = leader.metadata.partition.log.end_offset
        assert leader.metadata.commit_end == leader.metadata.applied_end == end
        assert leader.metadata.ends == {node.member: end for node in world.nodes.values()}
        follower = next(node for node in world.nodes.values() if node is not leader)
        assert follower.metadata is not None
        assert follower.metadata.ends == {}

    in_world(20, test)


def test_voter_and_leader_that_are_removed_are_gone() -> None:
    async def test(world: World) -> None:
        old = await world.three()
        assert old.metadata is not None
        await world.change_members(old.member, "")
        await asyncio.sleep(3)
        assert not old.metadata.is_leader
        new = await world.leader()
        assert new is not old
        assert new.metadata is not None
        assert old.member not in new.metadata.members.everyone
        await world.commit(new)

    in_world(21, test)


def test_read_waits_until_the_table_has_the_snapshot_that_the_core_knows(few_per_snapshot: None) -> None:
    async def test(world: World) -> None:
        leader = await world.three()
        lost = next(node for node in world.nodes.values() if node is not leader)
        world.split(set(world.nodes) - {lost.id}, {lost.id})
        for _ in range(20):
            await world.commit(leader)
        world.cut = set()
        assert lost.metadata is not None
        for _ in range(10_000):
            if lost.metadata.quorum.applied_end > lost.metadata.applied_end:
                break
            await asyncio.sleep(0.001)
        assert lost.names == []
        await lost.metadata.caught_up()
        assert lost.names == leader.names

    in_world(22, test)
