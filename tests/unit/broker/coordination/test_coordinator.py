"""The coordinator over a log that can be slow, broken or read back."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from anabranch.broker.coordination.groups.coordinator import GroupCoordinator
from anabranch.broker.coordination.groups.driver import LoopDriver
from anabranch.clock import RealClock
from anabranch.coordination.groups.messages import (
    CommitRequest,
    Identity,
    ListedGroup,
    PartitionCommit,
    SyncRequest,
)
from anabranch.coordination.groups.settings import GroupSettings
from anabranch.errors import (
    BatchTooLargeError,
    CoordinatorLoadingError,
    CoordinatorNotAvailableError,
    GroupIdNotFoundError,
    GroupNotEmptyError,
    GroupSubscribedError,
    IllegalGenerationError,
    InvalidGroupIdError,
    InvalidSessionTimeoutError,
    MemberIdRequiredError,
    NotCoordinatorError,
    NotOwnerError,
    OffsetMetadataTooLargeError,
    OffsetsFullError,
    StorageError,
    UnknownMemberIdError,
)
from anabranch.testing.fakes.clock import FakeClock
from anabranch.values import Generation, TopicPartition
from support.coordinator_bench import FakeLog, Node, turn
from support.group_bench import WALL_MS, join_request, subscription

ORDERS = TopicPartition("orders", 0)
BILLS = TopicPartition("bills", 3)
DAY_MS = 86_400_000


def commit_request(
    offset: int = 5, topic_partition: TopicPartition = ORDERS, **changes: Any
) -> CommitRequest:
    partition = PartitionCommit(*topic_partition, offset, 2, changes.pop("metadata", "note"))
    return CommitRequest("g", (partition,), **changes)


def on_a_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(asyncio.wait_for(test(), 10))

    run.__name__ = test.__name__
    return run


# --- members ----------------------------------------------------------------------------------------------


@on_a_loop
async def test_a_session_outside_the_bounds_is_refused() -> None:
    node = Node()
    for session_timeout_ms in (5_999, 1_800_001):
        with pytest.raises(InvalidSessionTimeoutError):
            await node.groups.join(join_request(session_timeout_ms=session_timeout_ms))
    assert node.groups.list_groups() == []


@on_a_loop
async def test_a_group_needs_a_name() -> None:
    node = Node()
    with pytest.raises(InvalidGroupIdError):
        await node.groups.join(join_request(group_id=""))
    with pytest.raises(InvalidGroupIdError):
        await node.groups.sync(SyncRequest("", "m", 1))
    with pytest.raises(InvalidGroupIdError):
        node.groups.heartbeat("", "m", 1)
    with pytest.raises(InvalidGroupIdError):
        node.groups.leave("", [Identity("m")])


@on_a_loop
async def test_the_name_of_a_group_may_not_have_any_length() -> None:
    node = Node()
    await node.groups.commit(CommitRequest("g" * 1024, (PartitionCommit(*ORDERS, 1, -1, ""),)))
    assert set(node.groups.fetch("g" * 1024)) == {ORDERS}
    with pytest.raises(InvalidGroupIdError, match="may have 1024 characters"):
        await node.groups.commit(CommitRequest("g" * 1025, (PartitionCommit(*ORDERS, 1, -1, ""),)))
    with pytest.raises(InvalidGroupIdError):
        node.groups.fetch("g" * 1025)


@on_a_loop
async def test_nobody_is_a_member_of_a_group_that_is_not_there() -> None:
    node = Node()
    with pytest.raises(UnknownMemberIdError):
        await node.groups.join(join_request("m"))
    with pytest.raises(UnknownMemberIdError):
        await node.groups.sync(SyncRequest("g", "m", 1))
    with pytest.raises(UnknownMemberIdError):
        node.groups.heartbeat("g", "m", 1)
    assert isinstance(node.groups.leave("g", [Identity("m")])[0].error, UnknownMemberIdError)


@on_a_loop
async def test_a_group_that_nobody_joined_leaves_nothing_behind() -> None:
    node = Node()
    with pytest.raises(MemberIdRequiredError):
        await node.groups.join(join_request(version=4))
    assert len(node.groups.list_groups()) == 1
    node.advance(10_000)
    assert node.groups.list_groups() == []
    assert node.log.appends == 0


@on_a_loop
async def test_a_join_waits_and_is_answered_by_the_clock() -> None:
    node = Node()
    joining = asyncio.create_task(node.groups.join(join_request()))
    await turn()
    assert node.groups.next_deadline_ms() == 100
    node.advance(100)
    assert (await joining).generation == 1


@on_a_loop
async def test_a_client_that_hangs_up_while_it_joins_does_not_break_the_group() -> None:
    node = Node()
    joining = [asyncio.create_task(node.groups.join(join_request())) for _ in range(2)]
    await turn()
    joining[0].cancel()
    await turn()
    node.advance(100)
    node.advance(100)
    answer = await joining[1]
    assert answer.generation == 1
    node.advance(9_000)
    node.groups.heartbeat("g", answer.member_id, 1)
    node.advance(1_000)
    assert [m.member_id for m in node.groups.describe("g", 6).members] == [answer.member_id]


@on_a_loop
async def test_an_assignment_is_answered_once_it_is_durable() -> None:
    node = Node()
    joining = asyncio.create_task(node.groups.join(join_request()))
    await turn()
    node.advance(100)
    answer = await joining
    node.log.hold()
    request = SyncRequest("g", answer.member_id, 1, assignments=((answer.member_id, b"0"),))
    syncing = asyncio.create_task(node.groups.sync(request))
    await turn()
    assert not syncing.done()
    node.log.open()
    assert (await syncing).assignment == b"0"


@on_a_loop
async def test_a_sync_that_cannot_be_written_says_that_the_coordinator_is_not_available() -> None:
    node = Node()
    joining = asyncio.create_task(node.groups.join(join_request()))
    await turn()
    node.advance(100)
    answer = await joining
    node.log.error = StorageError("disk full")
    with pytest.raises(CoordinatorNotAvailableError):
        await node.groups.sync(SyncRequest("g", answer.member_id, 1))
    node.log.error = None
    again = asyncio.create_task(node.groups.join(join_request(answer.member_id)))
    assert (await again).generation == 2


@on_a_loop
async def test_a_stopping_coordinator_answers_who_waits_and_takes_nobody_new() -> None:
    node = Node()
    joining = asyncio.create_task(node.groups.join(join_request()))
    await turn()
    node.groups.close()
    with pytest.raises(CoordinatorNotAvailableError):
        await joining
    with pytest.raises(CoordinatorNotAvailableError):
        await node.groups.commit(commit_request())
    assert node.groups.next_deadline_ms() is None


@on_a_loop
async def test_while_the_log_is_read_only_heartbeats_are_answered() -> None:
    groups = GroupCoordinator(FakeLog().append, FakeClock(), GroupSettings(), lambda: "id")
    groups.take_over(0, Generation(0))
    groups.heartbeat("g", "m", 1)
    with pytest.raises(CoordinatorLoadingError):
        await groups.join(join_request())
    with pytest.raises(CoordinatorLoadingError):
        groups.fetch("g")


@on_a_loop
async def test_the_driver_ticks_by_itself() -> None:
    clock = RealClock()
    settings = GroupSettings(initial_rebalance_delay_ms=5)
    groups = GroupCoordinator(FakeLog().append, clock, settings, lambda: "id")
    groups.loaded(groups.take_over(0, Generation(0)))
    driver = LoopDriver(groups, clock)
    driver.start()
    assert (await groups.join(join_request())).generation == 1
    driver.stop()


# --- offsets ----------------------------------------------------------------------------------------------


@on_a_loop
async def test_a_commit_shows_once_it_is_durable() -> None:
    node = Node()
    node.log.hold()
    committing = asyncio.create_task(node.groups.commit(commit_request(5)))
    await turn()
    assert node.groups.fetch("g") == {}
    assert not committing.done()
    node.log.open()
    assert await committing == [None]
    committed = node.groups.fetch("g")[ORDERS]
    assert committed[:4] == (5, 2, "note", WALL_MS)


@on_a_loop
async def test_a_commit_whose_client_hangs_up_still_counts() -> None:
    node = Node()
    node.log.hold()
    committing = asyncio.create_task(node.groups.commit(commit_request(5)))
    await turn()
    committing.cancel()
    node.log.open()
    await turn()
    assert node.groups.fetch("g")[ORDERS].offset == 5


@on_a_loop
async def test_of_many_commits_at_once_the_last_stays_and_they_share_appends() -> None:
    node = Node()
    node.log.hold()
    commits = [asyncio.create_task(node.groups.commit(commit_request(offset))) for offset in range(100)]
    await turn()
    node.log.open()
    await asyncio.gather(*commits)
    assert node.groups.fetch("g")[ORDERS].offset == 99
    assert node.groups.fetch("g") == Node(node.log).groups.fetch("g")
    assert node.log.appends == 2


@pytest.mark.parametrize(
    ("cause", "seen"),
    [
        (StorageError("full"), CoordinatorNotAvailableError),
        (NotOwnerError("moved"), NotCoordinatorError),
        (BatchTooLargeError("large"), BatchTooLargeError),
        (ZeroDivisionError("defect"), ZeroDivisionError),
    ],
)
def test_a_commit_that_could_not_be_written_fails_and_leaves_no_trace(
    cause: Exception, seen: type[Exception]
) -> None:
    async def scenario() -> None:
        node = Node()
        node.log.error = cause
        with pytest.raises(seen):
            await node.groups.commit(commit_request())
        assert node.groups.fetch("g") == {}
        assert node.groups.list_groups() == []

    asyncio.run(scenario())


@on_a_loop
async def test_a_note_that_is_too_long_is_refused_alone() -> None:
    node = Node()
    long = PartitionCommit(*ORDERS, 1, -1, "x" * 4_097)
    fits = PartitionCommit(*BILLS, 1, -1, "x" * 4_096)
    outcomes = await node.groups.commit(CommitRequest("g", (long, fits)))
    assert isinstance(outcomes[0], OffsetMetadataTooLargeError)
    assert outcomes[1] is None
    assert set(node.groups.fetch("g")) == {BILLS}
    assert await node.groups.commit(CommitRequest("g", (long,))) != [None]
    assert node.log.appends == 1


@on_a_loop
async def test_commits_of_invented_groups_are_refused_once_the_memory_for_offsets_is_used() -> None:
    node = Node(offsets_memory_bytes_max=2**20)
    taken = 0
    for number in range(1000):
        one = PartitionCommit(*ORDERS, 1, -1, "x" * 2_000)
        [outcome] = await node.groups.commit(CommitRequest(f"invented-{number}", (one,)))
        taken += outcome is None
    assert isinstance(outcome, OffsetsFullError)
    assert 200 < taken < 300
    assert node.groups.offset_memory.bytes_taken <= 2**20
    assert Node(node.log).groups.offset_memory.bytes_taken == node.groups.offset_memory.bytes_taken


@on_a_loop
async def test_partitions_with_an_offset_can_be_committed_when_the_memory_for_offsets_is_used() -> None:
    node = Node(offsets_memory_bytes_max=3_000)
    await node.groups.commit(CommitRequest("g", (PartitionCommit(*ORDERS, 1, -1, "note"),)))
    known = PartitionCommit(*ORDERS, 2, -1, "note")
    new = PartitionCommit(*BILLS, 2, -1, "x" * 1000)
    outcomes = await node.groups.commit(CommitRequest("g", (new, known)))
    assert isinstance(outcomes[0], OffsetsFullError)
    assert outcomes[1] is None
    assert node.groups.fetch("g")[ORDERS].offset == 2


@on_a_loop
async def test_memory_for_offsets_is_given_back() -> None:
    node = Node()
    for group in ("g", "h"):
        both = tuple(PartitionCommit(*each, 1, -1, "note") for each in (ORDERS, BILLS))
        await node.groups.commit(CommitRequest(group, both))
    await node.groups.commit(commit_request(metadata="a longer note"))
    assert await node.groups.delete_offsets("g", [ORDERS, BILLS]) == [None, None]
    await node.groups.forget_topics([BILLS.topic])
    await node.groups.delete_group("h")
    assert node.groups.offset_memory.bytes_taken == 0
    await node.groups.commit(commit_request())
    node.groups.give_up(0)
    assert node.groups.offset_memory.bytes_taken == 0


@on_a_loop
async def test_a_commit_with_a_generation_needs_its_group() -> None:
    node = Node()
    with pytest.raises(GroupIdNotFoundError):
        await node.groups.commit(commit_request(generation=1, member_id="m", version=9))
    with pytest.raises(IllegalGenerationError):
        await node.groups.commit(commit_request(generation=1, member_id="m", version=8))


@on_a_loop
async def test_a_commit_without_a_group_makes_a_simple_one() -> None:
    node = Node()
    await node.groups.commit(commit_request())
    assert node.groups.list_groups() == [ListedGroup("g", "", "Empty")]


@on_a_loop
async def test_all_offsets_or_the_wanted_ones_are_fetched() -> None:
    node = Node()
    await node.groups.commit(commit_request(1))
    await node.groups.commit(commit_request(2, BILLS))
    assert set(node.groups.fetch("g")) == {ORDERS, BILLS}
    assert set(node.groups.fetch("g", [BILLS, TopicPartition("none", 0)])) == {BILLS}
    assert node.groups.fetch("unknown") == {}


@on_a_loop
async def test_offsets_of_a_subscribed_topic_are_not_deleted() -> None:
    node = Node()
    answer = await node.member(protocols=(("range", subscription("orders")),))
    for topic_partition in (ORDERS, BILLS):
        await node.groups.commit(commit_request(1, topic_partition, member_id=answer.member_id, generation=1))
    outcomes = await node.groups.delete_offsets("g", [ORDERS, BILLS, TopicPartition("none", 0)])
    assert isinstance(outcomes[0], GroupSubscribedError)
    assert outcomes[1:] == [None, None]
    assert set(node.groups.fetch("g")) == {ORDERS}
    with pytest.raises(GroupIdNotFoundError):
        await node.groups.delete_offsets("unknown", [ORDERS])


@on_a_loop
async def test_deleted_topics_take_their_offsets_along() -> None:
    node = Node()
    await node.groups.commit(commit_request(1))
    node.log.hold()
    late = asyncio.create_task(node.groups.commit(commit_request(2, BILLS)))
    await turn()
    forgetting = asyncio.create_task(node.groups.forget_topics(["bills", "orders"]))
    await turn()
    node.log.open()
    await asyncio.gather(late, forgetting)
    assert node.groups.list_groups() == []
    assert Node(node.log).groups.list_groups() == []


# --- groups -----------------------------------------------------------------------------------------------


@on_a_loop
async def test_groups_are_listed_by_state_and_type() -> None:
    node = Node()
    await node.member()
    assert node.groups.list_groups(["stable"], ["Classic"]) == [ListedGroup("g", "consumer", "Stable")]
    assert node.groups.list_groups(["Empty"]) == []
    assert node.groups.list_groups((), ["consumer"]) == []


@on_a_loop
async def test_an_unknown_group_is_dead_or_from_version_6_not_found() -> None:
    node = Node()
    assert node.groups.describe("g", 5).state == "Dead"
    with pytest.raises(GroupIdNotFoundError):
        node.groups.describe("g", 6)


@on_a_loop
async def test_a_group_is_deleted_with_its_offsets_for_good() -> None:
    node = Node()
    answer = await node.member()
    await node.groups.commit(commit_request(member_id=answer.member_id, generation=1))
    with pytest.raises(GroupNotEmptyError):
        await node.groups.delete_group("g")
    node.groups.leave("g", [Identity(answer.member_id)])
    await node.groups.delete_group("g")
    for groups in (node.groups, Node(node.log).groups):
        assert groups.list_groups() == []
        assert groups.fetch("g") == {}
    with pytest.raises(GroupIdNotFoundError):
        await node.groups.delete_group("g")


@on_a_loop
async def test_a_deletion_covers_commits_that_are_on_their_way() -> None:
    node = Node()
    await node.groups.commit(commit_request(1))
    node.log.hold()
    committing = asyncio.create_task(node.groups.commit(commit_request(2, BILLS)))
    await turn()
    deleting = asyncio.create_task(node.groups.delete_group("g"))
    await turn()
    with pytest.raises(CoordinatorNotAvailableError):
        await node.groups.join(join_request())
    node.log.open()
    await asyncio.gather(committing, deleting)
    assert node.groups.fetch("g") == Node(node.log).groups.fetch("g") == {}


@on_a_loop
async def test_a_deletion_that_could_not_be_written_did_not_happen() -> None:
    node = Node()
    await node.groups.commit(commit_request(1))
    node.log.error = StorageError("full")
    with pytest.raises(CoordinatorNotAvailableError):
        await node.groups.delete_group("g")
    assert node.groups.fetch("g")[ORDERS].offset == 1
    assert node.groups.describe("g", 6).state == "Empty"


@on_a_loop
async def test_a_group_the_log_never_heard_of_is_deleted_without_a_record() -> None:
    node = Node()
    with pytest.raises(MemberIdRequiredError):
        await node.groups.join(join_request(version=4))
    await node.groups.delete_group("g")
    assert node.groups.list_groups() == []


# --- expiry -----------------------------------------------------------------------------------------------


async def expire(node: Node, milliseconds: int) -> None:
    node.advance(milliseconds)
    await turn()


@on_a_loop
async def test_offsets_of_a_simple_consumer_expire_after_its_last_commit() -> None:
    node = Node()
    await node.groups.commit(commit_request(1))
    await expire(node, 4 * DAY_MS)
    await node.groups.commit(commit_request(2, BILLS))
    await expire(node, 3 * DAY_MS)
    assert set(node.groups.fetch("g")) == {BILLS}
    await expire(node, 4 * DAY_MS)
    assert node.groups.list_groups() == []
    assert Node(node.log).groups.list_groups() == []


@on_a_loop
async def test_offsets_of_a_consumer_group_expire_after_it_became_empty_even_over_a_restart() -> None:
    node = Node()
    answer = await node.member()
    await node.groups.commit(commit_request(member_id=answer.member_id, generation=1))
    for _ in range(8):
        node.clock.advance(DAY_MS)
        node.groups.heartbeat("g", answer.member_id, 1)
        await expire(node, 0)
    assert ORDERS in node.groups.fetch("g")
    node.groups.leave("g", [Identity(answer.member_id)])
    await turn()
    after = Node(node.log)
    after.clock.jump_wall(8 * DAY_MS)
    await expire(after, 7 * DAY_MS - 1)
    assert ORDERS in after.groups.fetch("g")
    await expire(after, 600_000)
    assert after.groups.list_groups() == []


@on_a_loop
async def test_a_living_group_loses_old_offsets_of_topics_it_no_longer_reads() -> None:
    node = Node()
    await node.groups.commit(commit_request(1, BILLS))
    await node.groups.commit(commit_request(1, ORDERS))
    answer = await node.member(protocols=(("range", subscription("orders")),))
    node.clock.advance(7 * DAY_MS)
    node.groups.heartbeat("g", answer.member_id, 1)
    await expire(node, 0)
    assert set(node.groups.fetch("g")) == {ORDERS}


@on_a_loop
async def test_a_commit_may_say_how_long_it_lives() -> None:
    node = Node()
    await node.groups.commit(commit_request(1, version=4, retention_ms=3_600_000))
    after = Node(node.log)
    await expire(after, 3_599_999)
    assert ORDERS in after.groups.fetch("g")
    await expire(after, 600_000)
    assert after.groups.fetch("g") == {}


@on_a_loop
async def test_an_offset_that_is_committed_anew_does_not_expire() -> None:
    node = Node()
    await node.groups.commit(commit_request(1))
    node.log.hold()
    node.clock.advance(8 * DAY_MS)
    committing = asyncio.create_task(node.groups.commit(commit_request(2)))
    await turn()
    await expire(node, 0)
    node.log.open()
    await committing
    assert node.groups.fetch("g")[ORDERS].offset == 2
