"""Who keeps a partition: the ring's order, racks, and what people ask for."""

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.cluster.metadata.rows import BrokerRow
from anabranch.cluster.placement import (
    CREATED_AT_ONCE_MAX,
    SHARED_MAX,
    Partitions,
    Replicas,
    check_factor,
    check_replicas,
    check_request,
    check_room,
    check_same_factor,
    default_factor,
    place,
    ring_of,
    roomiest,
    walk,
)
from anabranch.cluster.tokens import partition_token, replicas_of
from anabranch.errors import (
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    PolicyViolationError,
)
from anabranch.values import BrokerId


def row(broker_id: int, rack: str | None = None, *, is_fenced: bool = False) -> BrokerRow:
    return BrokerRow(BrokerId(broker_id), f"disk{broker_id}", 0, "h", 1, rack=rack, is_fenced=is_fenced)


def test_without_racks_replicas_are_the_next_on_the_ring() -> None:
    brokers = [row(each) for each in (1, 2, 3, 4, 5)]
    placed = place(Partitions("orders", 0, 10), brokers, 3)
    for index, replicas in enumerate(placed):
        token = partition_token("orders", index, 10)
        assert list(replicas) == replicas_of(token, [BrokerId(each) for each in (1, 2, 3, 4, 5)])


def test_leaders_are_spread_evenly() -> None:
    leaders = Counter(
        replicas[0] for replicas in place(Partitions("orders", 0, 12), [row(1), row(2), row(3)], 3)
    )
    assert set(leaders.values()) == {4}


def test_added_partitions_are_placed_as_those_of_the_larger_topic() -> None:
    brokers = [row(1), row(2), row(3)]
    assert place(Partitions("orders", 4, 8), brokers, 2) == place(Partitions("orders", 0, 8), brokers, 2)[4:]


@given(
    racks=st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=9),
    factor=st.integers(1, 3),
    name=st.text("abcxyz", min_size=1, max_size=8),
)
def test_copies_are_in_as_many_racks_as_there_can_be(racks: list[str | None], factor: int, name: str) -> None:
    brokers = [row(number, rack) for number, rack in enumerate(racks)]
    distinct = len({rack for rack in racks if rack is not None}) + racks.count(None)
    for replicas in place(Partitions(name, 0, 7), brokers, factor):
        assert len(set(replicas)) == len(replicas) == min(factor, len(brokers))
        chosen = [racks[broker] for broker in replicas]
        used = len({rack for rack in chosen if rack is not None}) + chosen.count(None)
        assert used == min(distinct, len(replicas))


def test_the_first_on_the_ring_leads_whatever_its_rack() -> None:
    brokers = [row(1, "a"), row(2, "a"), row(3, "b")]
    for index, replicas in enumerate(place(Partitions("t", 0, 6), brokers, 2)):
        assert replicas[0] == ring_of("t", index, 6, brokers)[0].broker_id
        assert 3 in replicas


def test_a_walk_keeps_what_is_there_even_if_it_is_fenced_and_adds_nobody_fenced() -> None:
    ring = [row(1), row(2, is_fenced=True), row(3, is_fenced=True), row(4)]
    assert walk(ring, [BrokerId(3)], 3) == (1, 3, 4)
    assert walk(ring, [BrokerId(3)], 2) == (1, 3)
    assert walk(ring, (), 3) == (1, 4)


@pytest.mark.parametrize(
    ("setting", "brokers", "factor"), [(0, 1, 1), (0, 2, 2), (0, 5, 3), (2, 5, 2), (3, 1, 3)]
)
def test_the_default_factor(setting: int, brokers: int, factor: int) -> None:
    assert default_factor(setting, brokers) == factor


@pytest.mark.parametrize(("factor", "brokers"), [(0, 3), (-2, 3), (4, 9), (3, 2), (2, 1), (1, 0)])
def test_a_factor_that_cannot_be_is_refused_with_the_reason(factor: int, brokers: int) -> None:
    if (factor, brokers) == (1, 0):
        check_factor(factor, brokers)  # Nobody lives here to keep it: the placement finds that out.
        return
    with pytest.raises(InvalidReplicationFactorError, match="is not possible"):
        check_factor(factor, brokers)


def test_a_factor_that_can_be_is_taken() -> None:
    for factor, brokers in itertools.product((1, 2, 3), (3, 4)):
        check_factor(factor, brokers)


@pytest.mark.parametrize(
    ("replicas", "reason"),
    [
        ([], "1 to 3 replicas"),
        ([1, 2, 3, 4], "1 to 3 replicas"),
        ([1, 1], "twice"),
        ([1, 9], "no broker 9: known are 1, 2, 3, 4"),
        ([-1], "no broker -1"),
    ],
)
def test_an_assignment_that_cannot_be_is_refused(replicas: list[int], reason: str) -> None:
    brokers = {BrokerId(each): row(each) for each in (1, 2, 3, 4)}
    with pytest.raises(InvalidReplicaAssignmentError, match=reason):
        check_replicas(replicas, brokers)


def test_an_assignment_keeps_its_order() -> None:
    brokers = {BrokerId(each): row(each) for each in (1, 2, 3, 4)}
    assert check_replicas([4, 1, 3], brokers) == (4, 1, 3)


def test_partitions_of_a_topic_have_equally_many_replicas() -> None:
    check_same_factor([(BrokerId(1),), (BrokerId(2),)])
    with pytest.raises(InvalidReplicaAssignmentError, match="not 1 here and 2 there"):
        check_same_factor([(BrokerId(1),), (BrokerId(2), BrokerId(3))])


ONE, TWO, THREE, FOUR = map(BrokerId, (1, 2, 3, 4))


def check(kept: Replicas, count: int, *added: Replicas, partitions_max: int = 100_000) -> None:
    check_room({kept: count}, added, [ONE, TWO], partitions_max)


def test_broker_keeps_a_limited_number_of_shared_partitions() -> None:
    shared = (ONE, TWO)
    check(shared, SHARED_MAX - 1, shared)
    check(shared, SHARED_MAX - 1, *[(TWO,)] * SHARED_MAX)
    with pytest.raises(InvalidPartitionsError, match=f"Broker 2 would keep {SHARED_MAX + 1} partitions"):
        check(shared, SHARED_MAX - 1, (TWO, THREE), (FOUR, TWO))


def test_broker_keeps_a_limited_number_of_partitions_whatever_their_mode() -> None:
    for kept in ((ONE,), (), (ONE, TWO)):
        check(kept, 9, kept, partitions_max=10)
        with pytest.raises(InvalidPartitionsError, match=r"may keep 10 \(partitions\.max\)"):
            check(kept, 9, kept, kept, partitions_max=10)


def test_broker_with_too_many_partitions_does_not_keep_others_from_new_ones() -> None:
    check((ONE,), 11, (TWO,), partitions_max=10)
    check((ONE, THREE), SHARED_MAX + 1, (TWO, FOUR))
    with pytest.raises(InvalidPartitionsError, match="Broker 1 would keep 12"):
        check((ONE,), 11, (), partitions_max=10)


def test_one_request_creates_a_limited_number_of_partitions() -> None:
    check_request(CREATED_AT_ONCE_MAX)
    with pytest.raises(PolicyViolationError, match="send several requests"):
        check_request(CREATED_AT_ONCE_MAX + 1)


def test_the_roomiest_is_taken_and_of_those_alike_the_one_drawn() -> None:
    drawn = {BrokerId(1): 5, BrokerId(2): 7, BrokerId(3): 9}
    assert roomiest({BrokerId(1): 1000, BrokerId(2): 950, BrokerId(3): 100}, drawn.__getitem__) == 2
    assert roomiest({BrokerId(1): 1000, BrokerId(2): 800, BrokerId(3): 100}, drawn.__getitem__) == 1
