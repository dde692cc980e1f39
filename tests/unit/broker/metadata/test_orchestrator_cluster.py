"""Whole brokers that find each other: registration, beats, fences, voters, and who may not join."""

import asyncio
from collections.abc import Iterator

import pytest

from anabranch.broker.metadata.orchestrator import LEAVE_MS_MAX
from anabranch.broker.peers.messages import BrokerBeat, RegisterBroker, Registered
from anabranch.cluster.raft.messages import Member
from anabranch.errors import InvalidRequestError, PeerRefusedError, UnknownBrokerError
from anabranch.values import BrokerId
from support.broker_cluster import BrokerCluster, close_all, cluster_of


@pytest.fixture(autouse=True)
def clusters_end() -> Iterator[None]:
    yield
    close_all()


def test_three_brokers_register_and_become_voters() -> None:
    cluster = cluster_of(3)
    for broker_id in (1, 2, 3):
        rows = cluster.broker(broker_id).metadata.table.brokers
        assert {row.broker_id: row.is_fenced for row in rows.values()} == {1: False, 2: False, 3: False}
        assert [rows[BrokerId(each)].port for each in (1, 2, 3)] == [9001, 9002, 9003]
    assert cluster.voters() == {1, 2, 3}
    assert cluster.leader.metadata.table.founder == 1


def test_two_brokers_have_one_voter_and_seven_have_five() -> None:
    assert cluster_of(2).voters() == {1}
    cluster = cluster_of(7)
    assert len(cluster.voters()) == 5
    assert len(cluster.leader.metadata.members.learners) == 2


def test_a_broker_that_dies_is_fenced_and_one_that_returns_is_not() -> None:
    cluster = cluster_of(3)
    dead = cluster.follower_id
    cluster.kill(dead)
    cluster.until(lambda: cluster.leader.metadata.table.brokers[BrokerId(dead)].is_fenced, 5000)
    epoch = cluster.leader.metadata.table.brokers[BrokerId(dead)].epoch
    cluster.start(dead)
    cluster.settle()
    assert cluster.leader.metadata.table.brokers[BrokerId(dead)].epoch > epoch


def test_another_broker_leads_when_the_leader_dies_and_fences_it_after_a_full_session() -> None:
    cluster = cluster_of(3)
    dead = cluster.leader_id
    assert dead is not None
    cluster.kill(dead)
    cluster.until(lambda: cluster.leader_id is not None, 5000)
    began_ms = cluster.clock.monotonic_ms()
    cluster.until(lambda: cluster.leader.metadata.table.brokers[BrokerId(dead)].is_fenced, 6000)
    assert cluster.clock.monotonic_ms() - began_ms >= 2900
    assert all(
        not row.is_fenced for each, row in cluster.leader.metadata.table.brokers.items() if each != dead
    )


def test_a_cut_off_broker_knows_it() -> None:
    cluster = cluster_of(3)
    alone = cluster.follower_id
    orchestrator = cluster.broker(alone).orchestrator
    assert not orchestrator.is_cut_off(cluster.clock.monotonic_ms())
    cluster.net.isolate(BrokerId(alone))
    cluster.run(8000)
    assert orchestrator.is_cut_off(cluster.clock.monotonic_ms())
    cluster.net.heal()
    cluster.settle()
    assert not orchestrator.is_cut_off(cluster.clock.monotonic_ms())


def test_a_broker_with_a_new_disk_replaces_its_old_member() -> None:
    cluster = cluster_of(3)
    lost = cluster.follower_id
    old = cluster.broker(lost).metadata.me
    cluster.kill(lost, lose_disk=True)
    cluster.run(5000)
    cluster.start(lost)
    new = cluster.broker(lost).metadata.me
    assert new != old
    cluster.until(lambda: new in cluster.leader.metadata.members.voters)
    assert old not in cluster.leader.metadata.members.everyone


def test_a_broker_id_that_lives_is_not_given_twice() -> None:
    cluster = cluster_of(4)
    leader_id, taken = BrokerId(cluster.leader_id or 0), cluster.follower_id
    asking = cluster.lives[next(each for each in (2, 3, 4) if each not in (leader_id, taken))]
    row = cluster.leader.metadata.table.brokers[BrokerId(taken)]
    twin = RegisterBroker(BrokerId(taken), "another disk", "host", 9, "host", 10, None)
    with pytest.raises(PeerRefusedError, match=f"There is a broker {taken}.*another --broker-id") as refusal:
        cluster.do(asking.peers.ask(leader_id, twin, 1000))
    assert refusal.value.kind == "DuplicateBrokerError"
    assert cluster.leader.metadata.table.brokers[BrokerId(taken)] == row
    cluster.kill(taken)
    cluster.run(5000)
    assert isinstance(cluster.do(asking.peers.ask(leader_id, twin, 1000)), Registered)


@pytest.mark.parametrize(
    "registration",
    [
        RegisterBroker(BrokerId(5), "", "host", 9, "host", 10, None),
        RegisterBroker(BrokerId(5), "disk", "", 9, "host", 10, None),
        RegisterBroker(BrokerId(5), "disk", "host", 0, "host", 10, None),
        RegisterBroker(BrokerId(5), "disk", "host", 9, "host", 70_000, None),
        RegisterBroker(BrokerId(5), "disk", "h" * 256, 9, "host", 10, None),
    ],
)
def test_a_registration_without_sense_is_refused(registration: RegisterBroker) -> None:
    cluster = cluster_of(1)
    with pytest.raises(InvalidRequestError):
        cluster.do(cluster.leader.orchestrator.registered(registration))
    assert set(cluster.leader.metadata.table.brokers) == {1}


def test_a_beat_of_nobody_is_refused() -> None:
    cluster = cluster_of(1)
    for broker_id, epoch in ((9, 0), (1, 999)):
        with pytest.raises(UnknownBrokerError):
            cluster.leader.orchestrator.beaten(BrokerBeat(BrokerId(broker_id), epoch, 0, False))


def test_a_stopping_leader_hands_over_and_may_stop() -> None:
    cluster = cluster_of(3)
    leaving = cluster.leader_id
    assert leaving is not None
    began_ms = cluster.clock.monotonic_ms()
    cluster.do(cluster.broker(leaving).orchestrator.leave())
    assert cluster.clock.monotonic_ms() - began_ms < 4000
    assert cluster.leader_id not in (None, leaving)
    assert cluster.leader.metadata.table.brokers[BrokerId(leaving)].is_fenced


def test_a_stopping_follower_is_fenced_at_once() -> None:
    cluster = cluster_of(3)
    leaving = cluster.follower_id
    began_ms = cluster.clock.monotonic_ms()
    cluster.do(cluster.broker(leaving).orchestrator.leave())
    assert cluster.clock.monotonic_ms() - began_ms < 1500
    assert cluster.leader.metadata.table.brokers[BrokerId(leaving)].is_fenced


def test_brokers_that_stop_together_do_not_wait_for_each_other() -> None:
    cluster = cluster_of(3)
    began_ms = cluster.clock.monotonic_ms()
    took_ms = {}

    async def leave(broker_id: int) -> None:
        await cluster.broker(broker_id).orchestrator.leave()
        took_ms[broker_id] = cluster.clock.monotonic_ms() - began_ms
        await cluster.lives[broker_id].end()
        cluster.net.crash(BrokerId(broker_id))

    async def leave_all() -> None:
        await asyncio.gather(*(leave(each) for each in (1, 2, 3)))

    cluster.do(leave_all())
    # Who hears too late that the others go waits for a leader that cannot come, but not for each of them.
    assert max(took_ms.values()) <= LEAVE_MS_MAX


def test_the_last_brokers_to_stop_do_not_wait_for_a_leader_that_cannot_come() -> None:
    cluster = cluster_of(4)
    for broker_id in (1, 2, 3, 4):
        began_ms = cluster.clock.monotonic_ms()
        cluster.do(cluster.broker(broker_id).orchestrator.leave())
        assert cluster.clock.monotonic_ms() - began_ms < 3000
        cluster.kill(broker_id)
        if len(cluster.lives) > 1:
            cluster.run(100)


def test_a_stopping_only_broker_waits_for_nobody() -> None:
    cluster = cluster_of(1)
    began_ms = cluster.clock.monotonic_ms()
    cluster.do(cluster.broker(1).orchestrator.leave())
    assert cluster.clock.monotonic_ms() - began_ms < 500


def test_a_broker_that_joins_through_one_that_does_not_lead_is_registered_all_the_same() -> None:
    cluster = cluster_of(3)
    cluster.do(cluster.broker(cluster.leader_id or 0).orchestrator.leave())
    assert cluster.leader_id != 1
    cluster.broker(1).orchestrator.is_stopping = False
    cluster.start(4)
    cluster.settle()
    assert BrokerId(4) in cluster.leader.metadata.table.brokers


def test_nothing_is_written_while_nothing_happens() -> None:
    cluster = cluster_of(3)
    cluster.run(10_000)
    end = cluster.leader.metadata.applied_end
    cluster.run(30_000)
    assert cluster.leader.metadata.applied_end == end


@pytest.mark.parametrize("seed", range(4))
def test_lost_and_late_messages_change_nothing_for_good(seed: int) -> None:
    cluster = BrokerCluster(seed)
    cluster.net.plan.lose, cluster.net.plan.double, cluster.net.plan.slow = 0.1, 0.05, 0.05
    cluster.start(1, 2, 3)
    cluster.run(20_000)
    cluster.net.plan.lose = cluster.net.plan.double = cluster.net.plan.slow = 0.0
    cluster.settle()
    assert cluster.voters() == {1, 2, 3}
    assert all(isinstance(each, Member) for each in cluster.leader.metadata.members.voters)
