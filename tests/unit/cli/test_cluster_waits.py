"""What a cluster waits for that is not whole."""

from anabranch.cli.cluster.view import BrokerView, ClusterView, PartitionView, ReplicaView
from anabranch.cli.cluster.waits import moving_to, size_of, waits_of


def view(
    *partitions: PartitionView, fenced: tuple[int, ...] = (), silent: tuple[int, ...] = ()
) -> ClusterView:
    brokers = {
        each: BrokerView(each, f"h:{each}", None, is_fenced=each in fenced, is_silent=each in silent)
        for each in range(4)
    }
    return ClusterView("c", 0, brokers, list(partitions))


def partition(number: int, leader: int, in_sync: tuple[int, ...]) -> PartitionView:
    return PartitionView("t", number, 9, leader, 1, (0, 1, 2), in_sync)


def test_a_whole_cluster_waits_for_nothing() -> None:
    waits = waits_of(view(partition(0, 0, (0, 1, 2))), {}, {})
    assert (waits.sentences(), waits.facts()) == ([], [])


def test_copies_under_way_are_told_with_what_is_left() -> None:
    held = {
        0: {("t", 0): ReplicaView(3_000_000, 0), ("t", 1): ReplicaView(500, 0)},
        2: {("t", 0): ReplicaView(1_800_000, 7)},
    }
    waits = waits_of(view(partition(0, 0, (0, 1)), partition(1, 0, (0, 1))), held, {})
    assert waits.sentences() == ["Broker 2: 2 partitions are copying, 1.2 MB left."]
    assert waits.facts() == [
        {
            "broker": 2,
            "state": "up",
            "is_up": True,
            "copying": 2,
            "bytes_left": 1_200_500,
            "coming": 0,
            "leaderless": 0,
            "leading": 0,
        }
    ]


def test_a_broker_that_is_not_up_is_waited_for_by_the_partitions_it_leads() -> None:
    alone = PartitionView("alone", 0, 1, 1, 1, (1,), (1,))
    stored = PartitionView("stored", 0, 1, 1, 1, (), ())
    waits = waits_of(view(partition(0, 2, (0, 1, 2)), alone, stored, fenced=(1,), silent=(2,)), {}, {})
    assert [(fact["broker"], fact["leading"], fact["copying"]) for fact in waits.facts()] == [
        (1, 1, 0),
        (2, 1, 0),
    ]
    assert [sentence.partition(": ")[2].partition(".")[0] for sentence in waits.sentences()] == [
        "1 partition is led by it",
        "1 partition is led by it",
    ]


def test_nobody_guesses_a_size_that_no_leader_tells() -> None:
    waits = waits_of(view(partition(0, 0, (0, 1))), {}, {})
    assert waits.sentences() == ["Broker 2: 1 partition is copying."]
    assert waits.facts()[0]["bytes_left"] is None


def test_a_fenced_broker_is_waited_for_and_not_called_down() -> None:
    waits = waits_of(
        view(partition(0, 0, (0, 1)), partition(1, -1, ()), partition(2, -1, (0,)), fenced=(1, 2)), {}, {}
    )
    assert waits.sentences() == [
        "Broker 0: 1 partition is copying.",
        "Waiting for broker 1, which has stopped sending heartbeats: 2 partitions are missing its copy, 2 partitions "
        "are without a leader. It may be down, paused or cut off: check its process and its network.",
        "Waiting for broker 2, which has stopped sending heartbeats: 3 partitions are missing its copy, 2 partitions "
        "are without a leader. It may be down, paused or cut off: check its process and its network.",
    ]


def test_a_broker_that_does_not_answer_is_not_called_down() -> None:
    """It may be slow, paused, or out of reach from here only."""
    waits = waits_of(view(partition(0, 0, (0, 1)), silent=(2,)), {}, {})
    assert waits.sentences() == [
        "Waiting for broker 2, which does not answer: 1 partition is missing its copy. Check that its process runs and "
        "is not paused, and that its address can be reached from here."
    ]
    assert [(fact["state"], fact["is_up"]) for fact in waits.facts()] == [("silent", None)]


def test_a_broker_that_has_left_the_cluster_is_not_called_down() -> None:
    left = PartitionView("t", 0, 9, 0, 1, (0, 9), (0,))
    waits = waits_of(view(left), {}, {})
    assert waits.sentences() == [
        "Waiting for broker 9, which is not in the cluster: 1 partition is missing its copy. Start it again."
    ]
    assert [(fact["state"], fact["is_up"]) for fact in waits.facts()] == [("unregistered", False)]


def test_elections_and_moves_are_told() -> None:
    answer = {"topics": [{"name": "t", "partitions": [{"partition_index": 5, "adding_replicas": [3]}]}]}
    waits = waits_of(view(partition(0, -1, (0, 1, 2))), {}, moving_to(answer))
    assert waits.sentences() == [
        "Broker 3: 1 partition is moving to it.",
        "1 partition is about to elect a leader.",
    ]


def test_sizes_are_for_people() -> None:
    assert [size_of(size) for size in (0, 999, 1000, 1_234_567, 2_500_000_000, 10**16)] == [
        "0 bytes",
        "999 bytes",
        "1.0 kB",
        "1.2 MB",
        "2.5 GB",
        "10000.0 TB",
    ]
