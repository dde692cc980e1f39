"""Fetch sessions by KIP-227's rules."""

from uuid import UUID

import pytest

from anabranch.broker.read.fetch_sessions import (
    EPOCH_MAX,
    IDLE_MS_BEFORE_EVICTION,
    FetchContext,
    FetchSessions,
)
from anabranch.errors import FetchSessionTopicIdError, InvalidFetchSessionEpochError, UnknownFetchSessionError
from anabranch.wire.fetch_fast import FetchRequest


def request(
    session_id: int = 0,
    epoch: int = 0,
    topics: dict[str, list[tuple[int, int]]] | None = None,
    forgotten: dict[str, list[int]] | None = None,
) -> FetchRequest:
    """`topics`: (partition, offset) by name."""
    listed = [
        (name, [(partition, -1, offset, -1, -1, 100) for partition, offset in partitions])
        for name, partitions in (topics or {}).items()
    ]
    return FetchRequest(-1, 0, 1, 1000, 0, session_id, epoch, listed, list((forgotten or {}).items()), "")


CLIENT = object()


def ask(
    sessions: FetchSessions, asked: FetchRequest, now_ms: int = 0, ids: bool = False, client: object = CLIENT
) -> FetchContext:
    return sessions.context(asked, client, uses_topic_ids=ids, now_ms=now_ms)


def keys(context: FetchContext) -> list[tuple[object, int, int]]:
    return [(item.topic, item.partition, item.offset) for item in context.items]


def opened(sessions: FetchSessions, now_ms: int = 0) -> FetchContext:
    return ask(sessions, request(topics={"a": [(0, 5), (1, 6)]}), now_ms)


def test_epoch_zero_opens_a_session_and_answers_in_full() -> None:
    sessions = FetchSessions(10, 1000, 100, next_id=1)
    context = opened(sessions)
    assert (context.session_id > 0, context.incremental, len(sessions)) == (True, False, 1)
    assert keys(context) == [("a", 0, 5), ("a", 1, 6)]


def test_final_epoch_fetches_without_a_session_and_ends_the_one_it_names() -> None:
    sessions = FetchSessions(10, 1000, 100, next_id=1)
    session_id = opened(sessions).session_id
    context = ask(sessions, request(session_id, -1, {"b": [(0, 1)]}))
    assert (context.session_id, context.incremental, len(sessions)) == (0, False, 0)
    assert keys(context) == [("b", 0, 1)]


def test_epoch_zero_with_an_id_replaces_the_old_session() -> None:
    sessions = FetchSessions(10, 1000, 100, next_id=1)
    first = opened(sessions).session_id
    second = ask(sessions, request(first, 0, {"b": [(0, 1)]})).session_id
    assert (second != first, len(sessions)) == (True, 1)


def test_incremental_fetch_changes_adds_and_forgets() -> None:
    sessions = FetchSessions(10, 1000, 100, next_id=1)
    session_id = opened(sessions).session_id
    context = ask(sessions, request(session_id, 1, {"a": [(1, 9)], "b": [(0, 2)]}, {"a": [0], "x": [1]}))
    assert context.incremental
    assert keys(context) == [("a", 1, 9), ("b", 0, 2)]


def test_change_keeps_what_was_told_about_a_partition() -> None:
    sessions = FetchSessions(10, 1000, 100, next_id=1)
    context = opened(sessions)
    assert context.session is not None
    context.session.told(context.items[0], 7, 0)
    changed = ask(sessions, request(context.session_id, 1, {"a": [(0, 6)]}))
    told = {item.partition: item.high_watermark_sent for item in changed.items}
    assert told == {0: 7, 1: -1}


def test_partition_that_was_answered_is_served_last_next_time() -> None:
    sessions = FetchSessions(10, 1000, 100, next_id=1)
    context = opened(sessions)
    assert context.session is not None
    context.session.told(context.items[0], 7, 0)
    assert [item.partition for item in ask(sessions, request(context.session_id, 1)).items] == [1, 0]


def test_answer_about_a_partition_forgotten_meanwhile_does_not_bring_it_back() -> None:
    sessions = FetchSessions(10, 1000, 100, next_id=1)
    context = opened(sessions)
    assert context.session is not None
    forgotten = context.items[0]
    later = ask(sessions, request(context.session_id, 1, forgotten={"a": [0]}))
    context.session.told(forgotten, 7, 0)
    assert [item.partition for item in ask(sessions, request(later.session_id, 2)).items] == [1]


@pytest.mark.parametrize("epoch", [2, 3, -5])
def test_wrong_epoch_is_refused_and_the_right_one_still_counts(epoch: int) -> None:
    sessions = FetchSessions(10, 1000, 100, next_id=1)
    session_id = opened(sessions).session_id
    with pytest.raises(InvalidFetchSessionEpochError):
        ask(sessions, request(session_id, epoch))
    ask(sessions, request(session_id, 1))


def test_unknown_session_is_refused() -> None:
    with pytest.raises(UnknownFetchSessionError):
        ask(FetchSessions(10, 1000, 100, next_id=1), request(5, 1))


def test_session_of_names_cannot_go_on_with_ids() -> None:
    sessions = FetchSessions(10, 1000, 100, next_id=1)
    session_id = opened(sessions).session_id
    with pytest.raises(FetchSessionTopicIdError):
        ask(sessions, request(session_id, 1), ids=True)


def test_epoch_wraps_to_one() -> None:
    sessions = FetchSessions(10, 1000, 100, next_id=1)
    context = opened(sessions)
    assert context.session is not None
    context.session.epoch = EPOCH_MAX
    ask(sessions, request(context.session_id, EPOCH_MAX))
    assert context.session.epoch == 1


def test_session_with_nothing_left_to_fetch_is_over() -> None:
    sessions = FetchSessions(10, 1000, 100, next_id=1)
    session_id = opened(sessions).session_id
    context = ask(sessions, request(session_id, 1, forgotten={"a": [0, 1]}))
    assert (context.session_id, context.items, len(sessions)) == (0, [], 0)


def test_request_for_nothing_opens_no_session() -> None:
    sessions = FetchSessions(10, 1000, 100, next_id=1)
    assert (ask(sessions, request()).session_id, len(sessions)) == (0, 0)


def test_full_cache_gives_no_session_while_all_are_in_use() -> None:
    sessions = FetchSessions(1, 1000, 100, next_id=1)
    opened(sessions, now_ms=0)
    newcomer = opened(sessions, now_ms=IDLE_MS_BEFORE_EVICTION - 1)
    assert (newcomer.session_id, len(newcomer.items), len(sessions)) == (0, 2, 1)


def test_session_unused_for_longest_gives_way_once_it_is_idle() -> None:
    sessions = FetchSessions(2, 1000, 100, next_id=1)
    first, second = opened(sessions), opened(sessions)
    ask(sessions, request(first.session_id, 1), now_ms=10)
    newcomer = opened(sessions, now_ms=IDLE_MS_BEFORE_EVICTION)
    assert newcomer.session_id > 0
    ask(sessions, request(first.session_id, 2))
    with pytest.raises(UnknownFetchSessionError):
        ask(sessions, request(second.session_id, 1))


def test_without_slots_there_are_no_sessions() -> None:
    assert opened(FetchSessions(0, 1000, 100, next_id=1)).session_id == 0


def test_ids_wrap_and_skip_those_in_use() -> None:
    sessions = FetchSessions(10, 1000, 100, next_id=EPOCH_MAX - 1)
    ids = [opened(sessions).session_id for _ in range(3)]
    assert ids == [EPOCH_MAX - 1, EPOCH_MAX, 1]
    sessions._next_id = EPOCH_MAX
    assert opened(sessions).session_id == 2


def test_topics_may_be_named_by_id() -> None:
    sessions = FetchSessions(10, 1000, 100, next_id=1)
    topic_id = UUID(int=5)
    asked = request()._replace(topics=[(topic_id, [(0, -1, 0, -1, -1, 100)])])
    context = ask(sessions, asked, ids=True)
    assert keys(context) == [(topic_id, 0, 0)]


# --- limits ------------------------------------------------------------------------------------------------


def many(count: int, name: str = "a") -> dict[str, list[tuple[int, int]]]:
    return {name: [(partition, 0) for partition in range(count)]}


@pytest.mark.parametrize("epoch", [0, -1], ids=["with a session", "without"])
def test_partition_named_several_times_is_fetched_once(epoch: int) -> None:
    context = ask(FetchSessions(10, 1000, 100, next_id=1), request(0, epoch, {"a": [(0, 5)] * 7 + [(0, 6)]}))
    assert keys(context) == [("a", 0, 6)]


def test_consumer_beyond_the_partitions_of_all_sessions_fetches_in_full() -> None:
    sessions = FetchSessions(10, 100, 100, next_id=1)
    assert ask(sessions, request(topics=many(60))).session_id > 0
    context = ask(sessions, request(topics=many(41)))
    assert (context.session_id, len(context.items), sessions.partitions) == (0, 41, 60)
    assert ask(sessions, request(topics=many(40))).session_id > 0


def test_session_that_outgrows_the_cache_is_forgotten() -> None:
    sessions = FetchSessions(10, 1000, 100, next_id=1)
    session_id = ask(sessions, request(topics=many(100))).session_id
    with pytest.raises(UnknownFetchSessionError, match="outgrown"):
        ask(sessions, request(session_id, 1, many(1, "b")))
    assert (len(sessions), sessions.partitions) == (0, 0)


def test_idle_sessions_give_way_to_partitions_of_a_newcomer() -> None:
    sessions = FetchSessions(10, 100, 100, next_id=1)
    for _ in range(3):
        ask(sessions, request(topics=many(30)))
    assert ask(sessions, request(topics=many(70)), IDLE_MS_BEFORE_EVICTION).session_id > 0
    assert sessions.partitions == 100


def test_sessions_end_with_the_connection_that_used_them_last() -> None:
    sessions = FetchSessions(10, 1000, 100, next_id=1)
    old, new = object(), object()
    moved = ask(sessions, request(topics=many(3)), client=old).session_id
    ask(sessions, request(topics=many(4)), client=old)
    ask(sessions, request(moved, 1), client=new)
    sessions.client_left(old)
    assert (len(sessions), sessions.partitions) == (1, 3)
    ask(sessions, request(moved, 2), client=new)
    sessions.client_left(new)
    assert (len(sessions), sessions.partitions) == (0, 0)
