"""Real partitions of one ring: acknowledged when a follower has it, led on by another, and equal in the end."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from anabranch.broker.ring import replication_chunks as pieces
from anabranch.broker.ring.driver import ring_driver
from anabranch.broker.topics.stored_state import partition_key
from anabranch.broker.write.producer_limits import COUNT_MS
from anabranch.cluster.metadata.rows import Placement
from anabranch.errors import (
    NotEnoughCopiesError,
    NotOwnerError,
    OutOfOrderSequenceError,
    RequestTimedOutError,
    StorageError,
)
from anabranch.log.disk.checkpoint import RecoveryMark, read_checkpoint
from anabranch.modes.ring.messages import Beat
from anabranch.modes.ring.replica import PUSHES_UNDER_WAY_MAX
from anabranch.values import BrokerId, TopicPartition
from support.ring_brokers import TOPIC_ID, RingBrokers


@contextmanager
def ring(seed: int = 1, count: int = 3, **settings: object) -> Iterator[RingBrokers]:
    world = RingBrokers(seed, count, **settings)
    try:
        world.led_by(1)
        yield world
    finally:
        world.close()


@contextmanager
def ring_with(value: bytes) -> Iterator[RingBrokers]:
    """With this record on all three."""
    with ring() as world:
        world.produced([value])
        world.run(200)
        yield world


def test_the_first_broker_leads_and_what_it_takes_is_on_all_three() -> None:
    with ring() as world:
        job = world.produced([b"a", b"b"])
        assert job.base_offset == 0
        world.produced([b"c"])
        world.run(1000)
        assert [one.values for one in world.brokers.values()] == [[b"a", b"b", b"c"]] * 3
        assert [one.partition.high_watermark for one in world.brokers.values()] == [3] * 3
        world.check_equal()


def test_a_record_is_acknowledged_only_when_a_follower_has_synced_it() -> None:
    with ring() as world:
        world.cut_off(1)
        answered = world.produce([b"a"])
        world.run(300)
        assert (answered, world.brokers[1].partition.high_watermark) == ([], 0)
        world.heal()
        world.run_until(lambda: answered, 3000)
        assert answered[0].error is None


@pytest.mark.parametrize("flush", ["always", "os"])
def test_a_leader_that_dies_is_followed_by_the_second_and_takes_over_again_when_it_is_back(
    flush: str,
) -> None:
    with ring(flush=flush) as world:
        world.produced([b"a"])
        world.stop(1)
        world.led_by(2)
        assert world.leader.partition.generation == 2
        world.produced([b"b"])
        world.start(1)
        back_ms = world.clock.monotonic_ms()
        world.led_by(1)
        assert world.clock.monotonic_ms() - back_ms >= 5000
        world.produced([b"c"])
        world.become_equal()
        assert world.brokers[3].values == [b"a", b"b", b"c"]
        assert ring_driver(world.leader.partition).mode.generations.rows[-1][1] == 2


def test_a_follower_far_behind_catches_up_within_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE_BYTES_MAX", 64 * 1024)
    with ring() as world:
        world.stop(3)
        for _ in range(80):
            world.produced([b"x" * 1000] * 64)
        assert world.leader.partition.log.size_bytes > 5_000_000
        link = world.links[1, 3]
        link.bytes_under_way_max = 0
        world.start(3)
        world.run_until(lambda: world.brokers[3].partition.log.end_offset == 80 * 64, 20_000)
        assert link.bytes_under_way_max < (PUSHES_UNDER_WAY_MAX + 1) * 66_000
        world.become_equal()


def test_what_only_the_third_has_survives_the_first() -> None:
    with ring_with(b"a") as world:
        world.severed = {(1, 2), (2, 1)}
        world.produced([b"only B3"])
        world.stop(1)
        world.severed = set()
        world.led_by(2)
        assert world.brokers[2].values == [b"a", b"only B3"]
        world.start(1)
        world.led_by(1)
        world.become_equal()


def test_a_leader_cut_off_refuses_and_forgets_what_nobody_else_got() -> None:
    with ring_with(b"a") as world:
        world.cut_off(1)
        lost = world.produce([b"lost"])
        world.run(3000)
        assert isinstance(lost[0].error, NotOwnerError)
        refused = world.produce([b"refused"], at=world.brokers[1])
        world.run(10)
        assert isinstance(refused[0].error, NotOwnerError)
        world.run_until(lambda: world.brokers[2].mode.is_settled, 10_000)
        world.produced([b"b"], at=world.brokers[2])
        world.heal()
        world.led_by(1)
        world.become_equal()
        assert world.brokers[1].values == [b"a", b"b"]


def test_a_leader_without_followers_says_that_there_are_not_enough() -> None:
    with ring() as world:
        world.stop(2)
        world.stop(3)
        answered = world.produce([b"a"], timeout_ms=500)
        world.run(900)
        assert isinstance(answered[0].error, RequestTimedOutError)
        world.run(3000)
        refused = world.produce([b"b"], at=world.brokers[1])
        world.run(10)
        assert isinstance(refused[0].error, NotOwnerError | NotEnoughCopiesError)


def test_a_spoiled_push_is_not_taken_and_asked_for_again(caplog: pytest.LogCaptureFixture) -> None:
    with ring() as world, caplog.at_level(logging.CRITICAL):

        def spoil(data: bytearray) -> None:
            data[-1] ^= 1

        world.links[1, 2].spoil = spoil
        world.links[1, 3].spoil = spoil
        world.produced([b"a"])
        world.run(1000)
        assert world.brokers[2].replicas.pushes_spoiled_total == 1
        assert world.brokers[3].replicas.pushes_spoiled_total == 1
        world.check_equal()


def test_two_brokers_acknowledge_with_two_copies_and_say_that_they_have_no_failover() -> None:
    with ring(count=2) as world:
        world.produced([b"a"])
        world.run(200)
        world.check_equal()
        assert world.leader.mode.describe()["has_failover"] is False


# --- idempotent producers


def sequenced(world: RingBrokers, sequence: int, value: bytes, **more: object) -> object:
    return world.produced([value], producer_id=9, producer_epoch=0, base_sequence=sequence, **more)


def test_a_repeat_is_answered_by_the_next_leader_with_its_first_offset() -> None:
    with ring() as world:
        sequenced(world, 0, b"a")
        sequenced(world, 1, b"b")
        world.run(200)
        world.stop(1)
        world.led_by(2)
        again = sequenced(world, 1, b"b")
        assert again.base_offset == 1  # type: ignore[attr-defined]
        sequenced(world, 2, b"c")
        assert world.brokers[2].values == [b"a", b"b", b"c"]


def test_a_repeat_waits_until_its_original_is_safe() -> None:
    with ring() as world:
        world.cut_off(1)
        fields = {"producer_id": 9, "producer_epoch": 0, "base_sequence": 0}
        first = world.produce([b"a"], **fields)
        again = world.produce([b"a"], **fields)
        world.run(300)
        assert (first, again) == ([], [])
        world.heal()
        world.run_until(lambda: again, 3000)
        assert (again[0].error, again[0].base_offset) == (None, 0)


def test_what_was_cut_back_is_forgotten_by_the_table_of_producers() -> None:
    with ring() as world:
        sequenced(world, 0, b"a")
        world.run(200)
        world.cut_off(1)
        world.produce([b"lost"], producer_id=9, producer_epoch=0, base_sequence=1)
        world.run_until(lambda: world.brokers[2].mode.is_settled, 10_000)
        sequenced(world, 1, b"b", at=world.brokers[2])
        world.heal()
        world.led_by(1)
        again = sequenced(world, 1, b"b")
        assert again.base_offset == 1  # type: ignore[attr-defined]
        answered = world.produce([b"d"], producer_id=9, producer_epoch=0, base_sequence=5)
        world.run(100)
        assert isinstance(answered[0].error, OutOfOrderSequenceError)


def checkpoint(world: RingBrokers, broker_id: int) -> None:
    """As housekeeping does every now and then."""
    broker = world.brokers[broker_id]
    key, partition = partition_key(TOPIC_ID, 0), broker.partition
    broker.state.write_recovery_points(
        {key: partition.recovery_mark}, {key: broker.opener.producers_mark(partition)}
    )


def test_a_recovery_does_not_go_by_what_was_withdrawn_since_the_checkpoint() -> None:
    with ring_with(b"a") as world:
        world.cut_off(1)
        for _ in range(5):
            world.produce([b"lost"], at=world.brokers[1])
            world.run(20)
        checkpoint(world, 1)
        world.run_until(lambda: world.brokers[2].mode.is_settled, 10_000)
        for number in range(3):
            sequenced(world, number, b"%d" % number, at=world.brokers[2])
        world.heal()
        world.run_until(lambda: world.brokers[1].partition.log.end_offset == 4, 5000)
        world.stop(1)
        world.start(1)
        back = world.brokers[1]
        assert (back.partition.log.damaged, back.mode.replica.kept.is_trusted) == ([], True)
        world.led_by(1)
        assert sequenced(world, 2, b"2").base_offset == 3  # type: ignore[attr-defined]
        world.become_equal()
        assert back.values == [b"a", b"0", b"1", b"2"]


def test_a_producer_of_whom_everything_remembered_was_withdrawn_goes_on_after_a_restart() -> None:
    """The snapshot on the disk knows its first batch, the log more, and the table nothing after the cut."""
    with ring() as world:
        sequenced(world, 0, b"0")
        world.run(200)
        one = world.brokers[1]
        one.opener.save_producers(one.partition)
        checkpoint(world, 1)
        for number in range(1, 4):
            sequenced(world, number, b"%d" % number)
        world.run(200)
        world.cut_off(1)
        for number in range(4, 10):
            world.produce(
                [b"lost"], at=world.brokers[1], producer_id=9, producer_epoch=0, base_sequence=number
            )
            world.run(20)
        world.run_until(lambda: world.brokers[2].mode.is_settled, 10_000)
        world.heal()
        world.run_until(lambda: one.partition.log.end_offset == 4 and not one.mode.may_write, 5000)
        checkpoint(world, 1)
        world.stop(1)
        world.start(1)
        world.led_by(1)
        assert sequenced(world, 3, b"3").base_offset == 3  # type: ignore[attr-defined]
        assert sequenced(world, 4, b"4").base_offset == 4  # type: ignore[attr-defined]


def test_what_was_firm_before_a_restart_still_is_before_anybody_is_heard() -> None:
    with ring() as world:
        world.produced([b"a"])
        world.produced([b"b"])
        world.run(1000)
        checkpoint(world, 3)
        world.stop(3)
        world.severed = {(one, other) for one in (1, 2) for other in (3,)}
        world.start(3)
        assert world.brokers[3].partition.high_watermark == 0
        assert world.brokers[3].partition.recovery_mark == RecoveryMark(2, 2)


def test_a_snapshot_of_producers_does_not_outlive_what_is_withdrawn_while_it_is_written() -> None:
    with ring() as world:
        sequenced(world, 0, b"a")
        world.run(200)
        world.cut_off(1)
        world.produce([b"lost"], producer_id=9, producer_epoch=0, base_sequence=1)
        world.run(20)
        old = world.brokers[1]
        snapshot = old.opener.producers_to_save(old.partition)
        world.run_until(lambda: world.brokers[2].mode.is_settled, 10_000)
        for value in (b"b", b"c"):
            world.produce([value], at=world.brokers[2])
        world.heal()
        world.run_until(lambda: old.partition.log.end_offset == 3, 5000)
        assert snapshot is not None
        old.opener.write_producers(old.partition.log.folder, snapshot)
        old.partition.snapshot_offset = snapshot["offset"]
        world.stop(1)
        world.start(1)
        world.led_by(1)
        job = sequenced(world, 1, b"d")
        assert job.base_offset == 3  # type: ignore[attr-defined]
        world.run(1000)
        assert world.brokers[1].values == [b"a", b"b", b"c", b"d"]
        world.check_equal()


@pytest.mark.parametrize("is_moving", [False, True])
def test_a_restart_with_an_older_table_goes_on_in_the_view_that_was_entered(is_moving: bool) -> None:
    with ring() as world:
        world.produced([b"a"])
        first = world.brokers[1]
        with world._acting():
            first.replicas.place(first.partition, Placement((1, 2, 3), view=1, start=1, generation=3))
        world.run(100)
        for broker_id in world.ids:
            world.stop(broker_id)
        world.placement = Placement((1,), target=(1, 2, 3) if is_moving else None)
        world.start(1)
        world.run(5000)
        assert first.mode.replica.replicas == (1, 2, 3)
        assert not first.partition.is_leader, "it must not go on alone"
        assert first.partition.high_watermark == 0


def test_a_node_without_peers_does_not_open_what_it_kept_with_others() -> None:
    with ring() as world:
        world.produced([b"a"])
        world.stop(1)
        first = world.brokers[1]
        with pytest.raises(StorageError, match="--peer-listen"):
            first.opener.open(TopicPartition("t", 0), TOPIC_ID, first.partition.settings)


# --- disks


def test_a_promise_is_in_the_file_before_it_is_given() -> None:
    with ring() as world:
        for one in world.brokers.values():
            state = read_checkpoint(one.disk, "data/t-0/ring").value
            assert (state["promised"], state["generations"], state["return_id"]) == (1, [[1, 0]], None)


@pytest.mark.parametrize(
    ("flush", "lose_power", "is_trusted"),
    [
        ("os", True, False),
        ("os", False, True),
        ("always", True, True),
    ],
)
def test_who_may_lack_what_it_had_is_not_trusted_at_once(
    flush: str, lose_power: bool, is_trusted: bool
) -> None:
    with ring(flush=flush) as world:
        world.produced([b"a"])
        world.run(200)
        world.stop(3, lose_power=lose_power)
        world.start(3)
        assert world.brokers[3].mode.replica.kept.is_trusted is is_trusted
        world.run_until(lambda: world.brokers[3].mode.replica.kept.is_trusted, 5000)
        world.led_by(1)
        world.produced([b"b"])
        world.become_equal()


@pytest.mark.parametrize(("before", "after", "is_trusted"), [("os", "always", False), ("always", "os", True)])
def test_how_it_was_synced_counts_and_not_how_it_will_be(before: str, after: str, is_trusted: bool) -> None:
    with ring(flush=before) as world:
        world.produced([b"a"])
        world.run(200)
        world.stop(3, lose_power=True)
        world.settings["flush"] = after
        world.start(3)
        assert world.brokers[3].mode.replica.kept.is_trusted is is_trusted
        world.run(3000)
        world.stop(3, lose_power=True)
        world.start(3)
        assert world.brokers[3].mode.replica.kept.is_trusted is (after == "always")


def test_a_replica_that_has_lost_safe_records_to_rot_is_not_trusted_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with ring() as world, caplog.at_level(logging.CRITICAL):
        for number in range(5):
            world.produced([b"%d" % number])
        world.run(200)
        world.stop(3)
        world.brokers[3].disk.flip_bit("data/t-0/00000000000000000000.log", 100)
        world.start(3)
        assert world.brokers[3].partition.log.damaged
        assert not world.brokers[3].mode.replica.kept.is_trusted
        world.run_until(lambda: world.brokers[3].mode.replica.kept.is_trusted, 5000)
        world.become_equal()


@pytest.mark.parametrize("seed", range(10))
def test_a_log_torn_by_a_power_cut_has_lost_nothing_that_was_safe(seed: int) -> None:
    """Several writes wait for one sync, and any of them may be missing: whole ones follow, or whole segments."""
    with ring(seed=seed, log_segment_bytes=2048) as world:
        world.produced([b"safe"])
        world.run(200)
        for number in range(20):
            world.produce([b"%03d" % number * 100])
            world.run(1)
        for broker_id in world.ids:
            world.stop(broker_id, lose_power=True)
        for broker_id in world.ids:
            world.start(broker_id)
        assert all(one.mode.replica.kept.is_trusted for one in world.brokers.values())
        world.led_by(1)
        world.become_equal()


@pytest.mark.parametrize("lost", [1, 2])
@pytest.mark.parametrize("flush", ["os", "always"])
def test_of_two_the_other_fills_a_new_disk_and_one_that_lost_power(lost: int, flush: str) -> None:
    with ring(count=2, flush=flush) as world:
        for number in range(5):
            world.produced([b"%d" % number])
        world.stop(lost, lose_power=True)
        if flush == "always":
            blank = world.brokers[lost]
            blank.disk, blank.is_stranger = type(blank.disk)(), True
        world.start(lost)
        assert not world.brokers[lost].mode.replica.kept.is_trusted
        world.run_until(lambda: world.brokers[lost].mode.replica.kept.is_trusted, 10_000)
        world.run_until(world.leaders, 5000)
        world.produced([b"more"])
        world.become_equal()


@pytest.mark.parametrize("is_running", [True, False])
def test_all_have_lost_power_and_one_goes_on_once_the_loss_is_accepted(is_running: bool) -> None:
    with ring(flush="os") as world:
        for number in range(5):
            world.produced([b"%d" % number])
        world.run(200)
        for broker_id in world.ids:
            world.stop(broker_id, lose_power=True)
        for broker_id in world.ids:
            world.start(broker_id)
        world.run(20_000)
        assert not world.leaders(), "nobody may promise"
        kept = world.brokers[2].values
        world.acknowledged.clear()  # Whatever the others had is lost.
        forced = Placement((2,), (), 1, len(kept), 50, (1, 2, 3), move=7, is_forced=True)
        world.placement = forced
        for broker_id in world.ids:
            if is_running:
                with world._acting():
                    world.brokers[broker_id].replicas.place(world.brokers[broker_id].partition, forced)
            else:
                world.stop(broker_id)
                world.start(broker_id)
        world.led_by(2)
        assert all(one.mode.replica.kept.is_trusted for one in world.brokers.values())
        world.produced([b"more"])
        assert world.brokers[2].values == [*kept, b"more"]


def test_a_replica_without_others_trusts_itself_after_a_power_cut() -> None:
    with ring(count=2, flush="os") as world:
        world.stop(2)
        world.placement = Placement((1,), view=1, generation=50)
        with world._acting():
            world.brokers[1].replicas.place(world.brokers[1].partition, world.placement)
        world.led_by(1)
        world.produced([b"a"])
        world.stop(1, lose_power=True)
        world.start(1)
        assert world.brokers[1].mode.replica.kept.is_trusted, "nobody else could have what it lacks"
        world.acknowledged.clear()
        world.led_by(1)
        world.produced([b"b"])


def test_a_replica_knows_its_view_before_the_table_does() -> None:
    """What the table says after a restart may be older than what was entered."""
    with ring() as world:
        newer = Placement((BrokerId(2), BrokerId(3), BrokerId(1)), view=1)
        for one in world.brokers.values():
            one.replicas.place(one.partition, newer)
        world.led_by(2)
        world.produced([b"a"])
        world.stop(1)
        world.start(1)
        back = world.brokers[1]
        assert (back.mode.view, back.mode.replica.replicas) == (1, newer.replicas)
        back.replicas.place(back.partition, newer)
        world.run(1000)
        assert back.mode.leader() == 2
        world.check_equal()


def test_a_new_disk_is_filled_before_it_counts() -> None:
    with ring() as world:
        for number in range(5):
            world.produced([b"%d" % number])
        world.stop(3)
        blank = world.brokers[3]
        blank.disk, blank.is_stranger = type(blank.disk)(), True
        world.start(3)
        assert not blank.mode.replica.kept.is_trusted
        world.run_until(lambda: blank.mode.replica.kept.is_trusted, 5000)
        world.become_equal()


def test_a_replica_that_has_lost_its_table_of_generations_copies_everything_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whether its records are those of the leader it cannot know."""
    with ring() as world, caplog.at_level(logging.CRITICAL):
        world.produced([b"a"])
        world.run(200)
        world.cut_off(1)
        world.produce([b"lost"])
        world.run_until(lambda: world.brokers[2].mode.is_settled, 10_000)
        world.produced([b"b"], at=world.brokers[2])
        first = world.brokers[1]
        world.stop(1)
        first.disk.write("data/t-0/ring", b"garbled", sync=True)
        world.start(1)
        assert (first.mode.generations.rows, first.mode.replica.kept.is_trusted) == ((), False)
        assert first.partition.log.end_offset == 2
        world.heal()
        world.run_until(lambda: first.mode.replica.kept.is_trusted, 10_000)
        world.become_equal()
        assert first.values == [b"a", b"b"]


def test_a_folder_that_is_made_again_inherits_nothing_of_the_one_before() -> None:
    with ring() as world:
        world.produced([b"a"])
        world.produced([b"b"])
        world.run(1000)
        checkpoint(world, 3)
        world.stop(3)
        third = world.brokers[3]
        for name in third.disk.list("data/t-0"):
            third.disk.unlink(f"data/t-0/{name}")
        world.start(3)
        assert (third.partition.log.end_offset, third.mode.generations.rows) == (0, ())
        assert not third.mode.replica.kept.is_trusted, "it has lost what it had"
        world.run(5000)
        world.check_equal()
        assert third.values == [b"a", b"b"]


def test_a_partition_that_comes_back_begins_anew_whatever_was_known_of_it_at_the_start() -> None:
    with ring() as world:
        world.produced([b"a"])
        world.run(1000)
        checkpoint(world, 3)
        world.stop(3)
        world.start(3)
        third = world.brokers[3]
        world.stop(3)
        for name in third.disk.list("data/t-0"):
            third.disk.unlink(f"data/t-0/{name}")
        settings, target = third.partition.settings, Placement((1, 2), target=(1, 2, 3), view=1)
        third.opener.forget(third.partition)
        with world._acting():
            back = third.opener.open(
                TopicPartition("t", 0), TOPIC_ID, settings, is_new=True, placement=target
            )
        assert (back.log.end_offset, back.log.damaged, ring_driver(back).mode.generations.rows) == (0, [], ())
        assert back.mode.replica.kept.is_trusted  # type: ignore[attr-defined]


def test_a_follower_with_a_full_disk_does_not_stop_the_others_and_catches_up() -> None:
    with ring() as world:
        world.brokers[2].disk.capacity_bytes = 1
        for number in range(5):
            world.produced([b"%d" % number])
        world.brokers[2].disk.capacity_bytes = None
        world.run(3000)
        world.check_equal()


def test_a_leader_with_a_full_disk_lets_the_second_lead() -> None:
    with ring_with(b"a") as world:
        world.brokers[1].disk.capacity_bytes = 1
        world.produce([b"b"])
        world.led_by(2)
        world.produced([b"c"])
        world.brokers[1].disk.capacity_bytes = None
        world.led_by(1)
        world.become_equal()
        assert world.brokers[1].values == [b"a", b"c"]


def test_a_leader_whose_sync_fails_is_followed_by_the_second(caplog: pytest.LogCaptureFixture) -> None:
    with ring() as world, caplog.at_level(logging.CRITICAL):
        world.produced([b"a"])
        world.run(200)
        world.brokers[1].disk.fail_next("sync", path_contains="t-0/0")
        failed = world.produce([b"b"])
        world.run(500)
        assert failed[0].error is not None
        assert not world.brokers[1].mode.leads
        world.led_by(2)
        world.produced([b"c"])


def test_a_leader_that_cannot_write_down_its_promise_is_not_waited_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with ring() as world, caplog.at_level(logging.CRITICAL):
        world.produced([b"a"])
        world.run(200)
        world.stop(1)
        world.brokers[1].disk.fail_next("write", path_contains="ring", times=12)
        world.start(1)
        world.led_by(2)
        world.produced([b"b"])
        world.led_by(1)
        world.become_equal()


def test_a_leader_that_stops_hands_over_at_once() -> None:
    with ring_with(b"a") as world:
        waiting = world.produce([b"b"])
        with world._acting():
            world.brokers[1].replicas.resign()
        world.run(400)
        assert world.brokers[2].mode.may_write, "nobody waits for a silence"
        assert not world.brokers[1].mode.leads
        world.produced([b"c"], at=world.brokers[2])
        assert waiting[0].error is None or isinstance(waiting[0].error, NotOwnerError)
        world.become_equal()


def test_a_follower_follows_the_start_of_its_leader() -> None:
    with ring() as world:
        for number in range(5):
            world.produced([b"%d" % number])
        world.leader.partition.log.advance_start(3)
        world.run(1500)
        assert [one.partition.log.start_offset for one in world.brokers.values()] == [3] * 3


def test_a_blank_follower_begins_where_the_leader_does() -> None:
    with ring(overrides={"segment.bytes": "1024"}) as world:
        for number in range(8):
            world.produced([b"%d" % number * 600])
        world.run(500)
        for one in (1, 2):
            log = world.brokers[one].partition.log
            log.advance_start(5)
            gone = [segment for segment in log.segments if segment.published_offset <= 5]
            log.delete_files(log.drop(gone))
        world.stop(3)
        blank = world.brokers[3]
        blank.disk, blank.is_stranger = type(blank.disk)(), True
        world.start(3)
        world.run_until(lambda: blank.partition.log.end_offset == 8, 5000)
        world.run(1500)
        world.check_equal()
        assert blank.partition.log.start_offset == 5


def test_what_was_synced_before_a_cut_is_not_believed_after_it() -> None:
    """The word of a sync may have to wait for something to be remembered, and a cut come before it."""
    with ring_with(b"a") as world:
        follower = world.brokers[2]
        carried_out = ring_driver(follower.partition)
        carried_out._is_waiting = True
        follower.partition.synced(9, 0)
        carried_out._is_waiting = False
        with world._acting():
            carried_out._run()
        assert follower.mode.replica.synced_end == 1


# --- who hears what


def test_changes_of_leadership_are_reported() -> None:
    with ring() as world:
        world.run(1000)
        rows = world.brokers[1].leads
        assert (rows[-1].generation, rows[-1].in_sync) == (1, (1, 2, 3))
        assert world.brokers[2].replicas.leader_of(TOPIC_ID, 0) == (1, 1, ())
        world.stop(3)
        world.run(3000)
        assert rows[-1].in_sync == (1, 2)
        world.start(3)
        world.cut_off(1)
        world.led_by(2)
        assert rows[-1] is None
        assert [row.generation for row in world.brokers[2].replicas.led()] == [2]


def test_letters_of_other_views_and_strangers_are_ignored() -> None:
    with ring() as world:
        replicas = world.brokers[3].replicas
        before = replicas.letters_ignored_total
        letter = type("Letter", (), {})()
        letter.topic_id, letter.partition, letter.view, letter.message = TOPIC_ID, 0, 1, Beat(1, 99, 0)
        replicas.heard(1, letter)
        letter.view = 0
        replicas.heard(2, letter)
        letter.message = Beat(8, 99, 0)
        replicas.heard(8, letter)
        assert replicas.letters_ignored_total == before + 3
        assert world.brokers[3].partition.generation == 1


def test_a_link_without_room_is_tried_again() -> None:
    with ring() as world:
        world.room_bytes = 1000
        world.produced([b"a" * 100])
        answered = world.produce([b"b" * 5000])
        world.run(500)
        assert not answered
        world.room_bytes = 20_000
        world.run_until(lambda: answered, 2000)
        assert answered[0].error is None


def test_a_follower_remembers_no_more_producers_than_its_node_may() -> None:
    with ring() as world:
        follower = world.brokers[2]
        limits = follower.opener.producer_limits
        limits._broker_max, limits.partitions = 3, lambda: [follower.partition]
        for producer_id in range(8):
            world.produced([b"%d" % producer_id], producer_id=producer_id, producer_epoch=0, base_sequence=0)
            world.run(COUNT_MS)
        assert list(follower.partition.producers.producers) == [5, 6, 7]
        assert len(world.brokers[1].partition.producers.producers) == 8
        heard = [each.heard_ms for each in follower.partition.producers.producers.values()]
        assert all(world.clock.wall_ms() - each < 5 * COUNT_MS for each in heard), (
            "when it came, not what it says"
        )
