"""Which partitions move when a broker comes or goes."""

import pytest

from anabranch.cli.cluster.plan import cannot_move, kept_nowhere_else, moves_off, moves_onto, shrunk
from anabranch.cli.cluster.view import BrokerView, ClusterView, PartitionView


def view(brokers, rows, fenced=(), in_sync=None):
    """A topic whose partition i has the replicas rows[i]."""
    return ClusterView(
        "c",
        0,
        {number: BrokerView(number, f"h:{number}", None, number in fenced) for number in range(brokers)},
        [
            PartitionView("t", index, len(rows), replicas[0], 1, tuple(replicas), tuple(in_sync or replicas))
            for index, replicas in enumerate(rows)
        ],
    )


def test_new_broker_gets_its_share_and_the_rest_stays():
    before = view(3, [[0, 1], [1, 0], [0, 1], [1, 0], [0, 1], [1, 0]])
    moves = moves_onto(before, 2)
    assert 0 < len(moves) < 6
    for move in moves:
        assert 2 in move.after
        assert len(move.after) == len(move.before) == len(set(move.after))


def test_adding_twice_moves_nothing_more():
    before = view(3, [[0, 1]] * 6)
    moved = {move.partition: list(move.after) for move in moves_onto(before, 2)}
    after = view(3, [moved.get(index, [0, 1]) for index in range(6)])
    assert moves_onto(after, 2) == []


def test_drained_broker_keeps_nothing_and_every_partition_its_copies():
    before = view(4, [[0, 1, 2], [1, 2, 3], [2, 3, 0], [3, 0, 1]])
    moves = {move.partition: move for move in moves_off(before, 2)}
    assert sorted(moves) == [0, 1, 2]
    for move in moves.values():
        assert set(move.after) == {0, 1, 3}


def test_drain_moves_only_one_copy_of_a_partition():
    (move,) = moves_off(view(5, [[4, 0, 1]]), 4)
    assert {0, 1} < set(move.after)
    assert 4 not in move.after


def test_drain_does_not_move_onto_a_fenced_broker():
    (move,) = moves_off(view(4, [[0, 1, 2]], fenced=[3]), 2)
    assert set(move.after) == {0, 1}
    assert shrunk([move]) == ["t-0"]


def test_drain_keeps_a_fenced_copy_where_it_is():
    (move,) = moves_off(view(4, [[0, 1, 2]], fenced=[1]), 2)
    assert set(move.after) == {0, 1, 3}
    assert move.after[-1] == 1


def test_partition_that_nobody_else_can_take_is_not_in_the_plan():
    assert moves_off(view(1, [[0]]), 0) == []


@pytest.mark.parametrize(
    ("replicas", "in_sync", "alone"),
    [([1], [1], ["t-0"]), ([0, 1], [1], ["t-0"]), ([0, 1], [0, 1], []), ([0, 1], [0], []), ([0], [0], [])],
)
def test_only_copy_is_named(replicas, in_sync, alone):
    assert kept_nowhere_else(view(2, [replicas], in_sync=in_sync), 1) == alone


def test_copy_that_is_alone_and_out_of_sync_is_named_too():
    lost = ClusterView("c", 0, {}, [PartitionView("t", 0, 1, -1, 1, (1,), ())])
    assert kept_nowhere_else(lost, 1) == ["t-0"]


@pytest.mark.parametrize(
    ("replicas", "fenced", "frozen"),
    [
        ([0, 1, 2], [2], []),
        ([0, 1, 2], [1, 2], ["t-0"]),
        ([0, 2], [2], ["t-0"]),
        ([0, 2], [], []),
        ([2], [], []),
    ],
)
def test_ring_without_half_of_its_replicas_cannot_move(replicas, fenced, frozen):
    cluster = view(4, [replicas], fenced=fenced)
    assert cannot_move(cluster, moves_off(cluster, 2)) == frozen
