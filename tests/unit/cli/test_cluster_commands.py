"""`anabranch cluster status|ring|add|drain|remove` against a cluster that only answers questions."""

import json
import time

import pytest
from click.testing import CliRunner

from anabranch.cli.cluster import change as cluster_change
from anabranch.cli.main import main
from anabranch.errors import ClusterAnswerError
from anabranch.local_cluster import cluster_client
from anabranch.local_cluster.cluster_client import ClusterClient
from anabranch.wire.api_keys import ApiKey
from support.fake_cluster import FakeCluster


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(cluster_change, "LOOK_SECONDS", 0.0)


@pytest.fixture
def cluster():
    topics = {"orders": [[0, 1, 2], [1, 2, 3], [2, 3, 0], [3, 0, 1]], "__consumer_offsets": [[0, 1, 2]]}
    with FakeCluster(4, topics) as fake:
        yield fake


def run(cluster, *arguments, **more):
    command = ["cluster", *map(str, arguments), "--bootstrap", cluster.bootstrap, "--timeout", "5"]
    return CliRunner().invoke(main, command, **more)


def answer(cluster, *arguments):
    result = run(cluster, *arguments, "--format", "json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_status_tells_brokers_and_quorum(cluster):
    facts = answer(cluster, "status")
    assert facts["quorum"]["leader"] == 0
    assert facts["quorum"]["voters"][2] == {"id": 2, "end": 98, "lag": 2}
    assert facts["quorum"]["observers"] == [{"id": 3, "end": 90, "lag": 10}]
    assert [row["role"] for row in facts["brokers"]] == ["leader", "voter", "voter", "observer"]
    assert [row["leads"] for row in facts["brokers"]] == [2, 1, 1, 1]
    assert (facts["under_replicated"], facts["without_leader"]) == ([], [])


def test_status_names_what_is_in_trouble(cluster):
    cluster.fenced |= {1, 2, 3}
    facts = answer(cluster, "status")
    assert [row["state"] for row in facts["brokers"]] == ["up", "fenced", "fenced", "fenced"]
    assert facts["without_leader"] == ["orders-1"]
    assert facts["under_replicated"][1]["in_sync"] == [0]
    text = run(cluster, "status").stdout
    assert "Broker 3 is fenced." in text
    assert "Without a leader: orders-1." in text


def test_status_of_a_sound_cluster_says_so(cluster):
    assert "Every partition has a leader and all its copies." in run(cluster, "status").stdout


def test_status_claims_nothing_of_a_broker_that_does_not_answer(cluster):
    """For about a second after a kill the others go on naming it."""
    cluster.silent.add(3)
    facts = answer(cluster, "status")
    assert [row["state"] for row in facts["brokers"]] == ["up", "up", "up", "silent"]
    assert facts["unconfirmed"] == ["orders-1", "orders-2", "orders-3"]
    lines = run(cluster, "status").stdout.splitlines()
    assert "Broker 3 does not answer." in lines
    assert "Reported in sync, but a replica does not answer: orders-1, orders-2, orders-3." in lines
    assert "Every partition has a leader and all its copies." not in lines


def test_status_names_partitions_that_a_fenced_broker_still_leads(cluster):
    """Nobody else can lead the only copy, and a paused broker does not say that it leads no longer."""
    cluster.topics = {"alone": [[3], [0]], "orders": [[3, 0, 1]]}
    cluster.fenced.add(3)
    cluster.still_leading.add(3)
    facts = answer(cluster, "status")
    assert (facts["unconfirmed"], facts["without_leader"]) == (["alone-0", "orders-0"], [])
    assert [(wait["broker"], wait["leading"]) for wait in facts["waits_for"]] == [(3, 2)]
    text = run(cluster, "status").stdout
    assert "Reported in sync, but a replica does not answer: alone-0, orders-0." in text
    assert "2 partitions are led by it." in text


@pytest.mark.parametrize("command", ["status", "ring"])
def test_brokers_that_stay_silent_are_waited_for_together(cluster, monkeypatch, command):
    """Three whose processes are stopped: the system still accepts connections for them."""
    monkeypatch.setattr(cluster_client, "EACH_SECONDS_MAX", 1.0)
    cluster.paused |= {1, 2, 3}
    start = time.monotonic()
    facts = answer(cluster, command)
    assert time.monotonic() - start < 5, "not the --timeout of even one of them"
    if command == "status":
        assert [row["state"] for row in facts["brokers"]] == ["up", "silent", "silent", "silent"]
    else:
        assert [row["leader_answers"] for row in facts] == [True, False, False, False]


def test_status_asks_the_leaders_themselves_who_is_in_sync(cluster):
    cluster.out_of_sync.add(2)
    cluster.unaware |= {0, 3}
    facts = answer(cluster, "status")
    assert (facts["unconfirmed"], facts["disputed"]) == ([], ["orders-1", "orders-2"])
    lines = run(cluster, "status").stdout.splitlines()
    assert lines[-1] == "The leader reports a different state; run this again: orders-1, orders-2."


def test_copy_on_a_broker_that_does_not_answer_waits_for_it(cluster):
    cluster.out_of_sync.add(3)
    cluster.silent.add(3)
    facts = answer(cluster, "status")
    (wait,) = facts["waits_for"]
    assert (wait["broker"], wait["state"], wait["is_up"], wait["copying"]) == (3, "silent", None, 3)
    text = run(cluster, "status").stdout
    assert "Waiting for broker 3, which does not answer: 3 partitions are missing its copy." in text
    assert "down" not in text


def test_status_does_not_count_a_leader_of_whom_nobody_has_heard(cluster):
    cluster.generation = -1
    assert answer(cluster, "status")["without_leader"][1:] == ["orders-0", "orders-1", "orders-2", "orders-3"]


def test_status_says_which_partitions_have_no_failover():
    with FakeCluster(3, {"pairs": [[0, 1], [1, 2]], "rings": [[0, 1, 2]], "alone": [[2]]}) as fake:
        assert answer(fake, "status")["without_failover"] == ["pairs-0", "pairs-1"]
        assert "No failover, because only two brokers keep them and both must be up: pairs-0, pairs-1." in (
            run(fake, "status").stdout
        )


def test_ring_tells_leader_followers_generation_end_and_lag(cluster):
    rows = answer(cluster, "ring")
    assert [row["leader"] for row in rows] == [0, 1, 2, 3]
    assert (rows[1]["generation"], rows[1]["end"]) == (7, 42)
    assert rows[1]["replicas"][2] == {"id": 3, "in_sync": True, "size_bytes": 1000, "lag": 3}
    assert "1:1 2:2 3:3" in run(cluster, "ring").stdout


def test_ring_shows_one_topic_and_internal_ones_when_asked(cluster):
    assert {row["topic"] for row in answer(cluster, "ring", "--internal")} == {"orders", "__consumer_offsets"}
    assert len(answer(cluster, "ring", "--topic", "orders")) == 4
    assert "There is no topic called nothing" in run(cluster, "ring", "--topic", "nothing").stderr


def test_recover_looks_first_and_acts_only_when_the_loss_is_accepted(cluster):
    looked = run(cluster, "ring", "recover", "orders", 0)
    assert looked.stdout.splitlines() == [
        "What there is.",
        "What is lost.",
        "Nothing was changed: add --accept-loss to do it.",
    ]
    done = answer(cluster, "ring", "recover", "orders", 0, "--accept-loss")
    found = ["What there is.", "What is lost."]
    assert done == {"topic": "orders", "partition": 0, "is_done": True, "found": found}
    misplaced = run(cluster, "ring", "--topic", "orders", "recover", "orders", 0, "--accept-loss")
    assert "belong after recover" in misplaced.stderr
    refused = run(cluster, "ring", "recover", "orders", 1, "--accept-loss")
    assert (refused.exit_code, refused.stderr) == (1, "Error: It has one (ELECTION_NOT_NEEDED).\n")
    assert cluster.elections == [100, 1, 1]


def test_ring_does_not_know_the_lag_of_a_broker_that_hangs_up(cluster):
    cluster.silent.add(3)
    rows = answer(cluster, "ring")
    assert rows[1]["replicas"][2]["lag"] is None
    assert rows[1]["replicas"][0]["lag"] == 1
    assert rows[3]["end"] is None


def test_ring_does_not_call_a_leader_in_sync_that_does_not_answer(cluster):
    """Without a quorum nobody fences it: the others go on naming it."""
    cluster.silent.add(3)
    rows = answer(cluster, "ring")
    assert (rows[3]["leader"], rows[3]["leader_answers"]) == (3, False)
    assert [copy["in_sync"] for copy in rows[3]["replicas"]] == [None, True, True]
    assert [row["leader_answers"] for row in rows[:3]] == [True] * 3
    lines = run(cluster, "ring").stdout.splitlines()
    (row,) = [words for line in lines if (words := line.split())[:2] == ["orders", "3"]]
    assert row[2:10] == ["3?", "7", "3", "0", "1", "3?", "0", "1"]
    assert lines[-1] == "Broker 3 does not answer: values with a ? are what the others heard last."


def test_ring_does_not_believe_a_copy_that_is_not_in_sync_and_says_that_it_lacks_nothing(cluster):
    cluster.out_of_sync.add(0)
    ring = answer(cluster, "ring")[0]["replicas"]
    assert [(copy["id"], copy["in_sync"], copy["lag"]) for copy in ring] == [
        (0, False, None),
        (1, True, 1),
        (2, True, 2),
    ]


def test_drain_moves_everything_and_shows_progress(cluster):
    result = run(cluster, "drain", 2)
    assert result.exit_code == 0, result.output
    assert "4 of 4 partitions have moved" in result.stderr
    assert all(2 not in replicas for rows in cluster.topics.values() for replicas in rows)
    assert all(len(replicas) == 3 for rows in cluster.topics.values() for replicas in rows)
    assert "Nothing has to move" in run(cluster, "drain", 2).stdout
    assert cluster.draining == {2}


def test_drain_that_does_not_wait_says_that_it_goes_on(cluster):
    facts = answer(cluster, "drain", 2, "--no-wait")
    assert (facts["done"], len(facts["moved"]), len(cluster.moving)) == (False, 4, 4)


def test_drain_that_makes_copies_fewer_says_so(cluster):
    cluster.fenced.add(3)
    assert "Fewer copies than before" in run(cluster, "drain", 2).stderr


@pytest.mark.parametrize("arguments", [("drain", 2), ("remove", 2, "--yes"), ("add", 3)])
def test_a_change_is_asked_for_again_while_the_quorum_elects_a_leader(cluster, arguments):
    changes = (
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.UNREGISTER_BROKER,
    )
    cluster.elects = dict.fromkeys(changes, 3)
    cluster.stops_when_empty = 2
    result = run(cluster, *arguments)
    assert result.exit_code == 0, result.output
    asked = [api for _, api in cluster.asked]
    assert asked.count(ApiKey.INCREMENTAL_ALTER_CONFIGS) == 4


def test_a_quorum_that_elects_nobody_is_not_waited_for_forever(cluster, monkeypatch):
    monkeypatch.setattr(cluster_change, "PATIENCE_SECONDS", 0.0)
    cluster.elects = {ApiKey.INCREMENTAL_ALTER_CONFIGS: 1000}
    result = run(cluster, "drain", 2)
    assert result.exit_code == 1
    assert "NOT_CONTROLLER" in result.stderr


def test_move_that_is_refused_is_named_with_the_reason(cluster):
    cluster.refuses = "A broker is named twice."
    result = run(cluster, "drain", 2)
    assert result.exit_code == 1
    assert "orders-0: A broker is named twice (INVALID_REPLICA_ASSIGNMENT)" in result.stderr


def test_moves_that_stop_half_way_are_an_error_and_no_endless_wait(cluster, monkeypatch):
    monkeypatch.setattr(cluster_change, "PATIENCE_SECONDS", 0.05)
    cluster.forgets = True
    result = run(cluster, "drain", 2)
    assert result.exit_code == 1
    assert "Nothing is moving any more" in result.stderr


def test_drain_of_a_broker_that_dies_with_an_only_copy_says_what_it_waits_for_and_gives_up(
    cluster, monkeypatch
):
    monkeypatch.setattr(cluster_change, "PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr(cluster_change, "LOOK_AT_BROKERS_SECONDS", 0.0)
    cluster.topics = {"orders": [[2], [0, 1, 2]]}
    cluster.dies_in_a_move = 2
    result = run(cluster, "drain", 2)
    assert result.exit_code == 1
    why = "too few copies are up to move orders-0 (brokers not up: 2)."
    assert f"Waiting: {why}\n" in result.stderr
    assert f"The moves are stuck: {why} Bring those brokers back up" in result.stderr
    cluster.dies_in_a_move = None
    cluster.fenced.clear()
    assert run(cluster, "drain", 2).exit_code == 0


def test_broker_is_added_by_moving_its_share(cluster):
    cluster.topics = {"orders": [[0, 1]] * 6}
    cluster.draining = {3}
    facts = answer(cluster, "add", 3)
    assert cluster.draining == set()
    assert facts["done"]
    assert facts["moved"]
    assert any(3 in replicas for replicas in cluster.topics["orders"])


def test_fenced_broker_gets_nothing(cluster):
    cluster.fenced.add(3)
    assert "Broker 3 is fenced" in run(cluster, "add", 3).stderr


def test_unknown_broker_is_refused_with_those_there_are(cluster):
    for command in (("add", 9), ("drain", 9), ("remove", 9, "--yes")):
        result = run(cluster, *command)
        assert (result.exit_code, "it has 0, 1, 2, 3" in result.stderr) == (1, True)


def test_broker_is_removed_once_others_keep_what_it_kept_and_it_has_stopped(cluster):
    cluster.stops_when_empty = 3
    assert answer(cluster, "remove", 3, "--yes") == {"removed": 3, "moved": 3}
    assert cluster.unregistered == [3]


def test_dead_broker_is_removed_at_once(cluster):
    cluster.fenced.add(3)
    assert answer(cluster, "remove", 3, "--yes") == {"removed": 3, "moved": 3}
    assert cluster.unregistered == [3]


def test_dead_broker_whose_partitions_cannot_move_is_not_waited_for(cluster):
    cluster.topics["two"] = [[0, 3]]
    cluster.fenced.add(3)
    result = run(cluster, "remove", 3, "--yes")
    assert result.exit_code == 1
    assert "Too few copies are up to move two-0" in result.stderr
    assert (cluster.unregistered, cluster.moving) == ([], {})


def test_broker_that_still_runs_is_drained_but_not_removed(cluster):
    result = run(cluster, "remove", 3, "--yes", "--stop-timeout", 0.05)
    assert result.exit_code == 1
    assert "stop its process now" in result.stderr
    assert "still runs and would join again" in result.stderr
    assert cluster.unregistered == []
    assert all(3 not in replicas for rows in cluster.topics.values() for replicas in rows)


def test_broker_with_the_only_copy_is_not_removed(cluster):
    cluster.topics["alone"] = [[3], [0]]
    result = run(cluster, "remove", 3, "--yes")
    assert result.exit_code == 1
    assert "Broker 3 holds the only copy of alone-0" in result.stderr
    assert "cluster drain 3" in result.stderr
    assert (cluster.unregistered, cluster.moving) == ([], {})


def test_dead_broker_with_the_only_copy_has_to_be_started_before_it_is_drained(cluster):
    cluster.topics["alone"] = [[3], [0]]
    cluster.fenced.add(3)
    result = run(cluster, "remove", 3, "--yes")
    assert (result.exit_code, result.stderr) == (
        1,
        "Error: Broker 3 is not up and holds the only copy of alone-0: start it again, then run `anabranch cluster "
        "drain 3`. If its disk is lost, start it with an empty folder and --join, which gives up these records.\n",
    )
    assert (cluster.unregistered, cluster.moving) == ([], {})


def test_broker_with_the_only_copy_in_sync_is_not_removed(cluster):
    cluster.out_of_sync.add(0)
    cluster.topics = {"orders": [[0, 2]]}
    assert "the only copy of orders-0" in run(cluster, "remove", 2, "--yes").stderr
    assert cluster.unregistered == []


def test_nothing_is_removed_without_a_yes(cluster):
    assert run(cluster, "remove", 3).exit_code == 2
    assert (cluster.unregistered, cluster.moving) == ([], {})


# --- the client behind them -------------------------------------------------------------------------------


def test_client_goes_on_with_another_broker_when_one_hangs_up(cluster):
    with ClusterClient(cluster.bootstrap) as client:
        client.metadata()
        cluster.silent.add(0)
        assert len(client.metadata()["brokers"]) == 4
        assert len(client.metadata()["brokers"]) == 4


def test_client_asks_the_broker_it_was_told_to(cluster):
    with ClusterClient(cluster.bootstrap) as client:
        client.ask(ApiKey.DESCRIBE_LOG_DIRS, {"topics": None}, broker=2)
    assert cluster.asked[-1] == (2, ApiKey.DESCRIBE_LOG_DIRS)


def test_client_says_who_did_not_answer_and_why(cluster):
    cluster.silent |= {0, 1, 2, 3}
    with (
        ClusterClient(cluster.bootstrap) as client,
        pytest.raises(ClusterAnswerError, match=r"could answer METADATA .*(closed|reset)"),
    ):
        client.metadata()


def test_client_refuses_what_no_broker_serves(cluster):
    with (
        ClusterClient(cluster.bootstrap) as client,
        pytest.raises(ClusterAnswerError, match="OFFSET_DELETE is not served"),
    ):
        client.ask(ApiKey.OFFSET_DELETE, {})


def test_client_refuses_a_broker_nobody_knows(cluster):
    with (
        ClusterClient(cluster.bootstrap) as client,
        pytest.raises(ClusterAnswerError, match="Broker 9 is not in"),
    ):
        client.ask(ApiKey.METADATA, {"topics": []}, broker=9)


def test_address_that_is_none_is_refused():
    with pytest.raises(ClusterAnswerError, match="nowhere is not HOST:PORT"):
        ClusterClient("nowhere")


def test_topics_in_the_object_store_are_kept_by_nobody(cluster):
    cluster.topics["stored"] = [[1], [2]]
    cluster.objects.add("stored")
    rows = [row for row in answer(cluster, "ring") if row["topic"] == "stored"]
    assert [(row["leader"], row["replicas"]) for row in rows] == [(1, []), (2, [])]
    drained = answer(cluster, "drain", 1)
    assert "stored" not in {move["topic"] for move in drained["moved"]}


def test_topics_in_mode_branch_have_leaders_and_need_no_failover(cluster):
    cluster.topics["branched"] = [[1, 2], [2, 3]]
    cluster.branches.add("branched")
    rows = [row for row in answer(cluster, "ring") if row["topic"] == "branched"]
    assert [(row["leader"], row["end"]) for row in rows] == [(1, 42), (2, 42)]
    facts = answer(cluster, "status")
    assert (facts["without_leader"], facts["without_failover"]) == ([], [])


def test_drain_leaves_topics_in_mode_branch_to_themselves_and_waits_for_them(cluster):
    cluster.topics = {"branched": [[1, 2], [2, 1]]}
    cluster.branches.add("branched")
    result = run(cluster, "drain", 1)
    assert result.exit_code == 0, result.output
    assert "Waiting for other brokers to take over branched-0" in result.stderr
    assert cluster.topics["branched"] == [[2, 1], [2, 1]]
    assert "branched" not in {move["topic"] for move in answer(cluster, "add", 1)["moved"]}


def test_drain_waits_for_a_partition_that_is_on_its_way_to_the_object_store(cluster):
    cluster.topics["going"] = [[1, 2, 3]]
    cluster.objects.add("going")
    cluster.changing.add("going")
    result = run(cluster, "drain", 1)
    assert result.exit_code == 0, result.output
    assert "going" not in cluster.changing


def test_drain_gives_up_on_what_stays_with_the_broker(cluster, monkeypatch):
    monkeypatch.setattr(cluster_change, "PATIENCE_SECONDS", 0.05)
    cluster.topics["branched"] = [[1]]
    cluster.branches.add("branched")
    result = run(cluster, "drain", 1)
    assert result.exit_code == 1
    assert "Other brokers have not taken over branched-0 yet" in result.stderr


def test_drain_waits_until_who_writes_a_branch_now_has_all_of_it(cluster):
    cluster.topics = {"branched": [[2, 1]]}
    cluster.branches.add("branched")
    cluster.branch_lag = 9
    result = run(cluster, "drain", 1)
    assert result.exit_code == 0, result.output
    assert "Waiting for other brokers to take over branched-0" in result.stderr
    assert cluster.branch_lag == 0


def test_drain_waits_for_a_broker_that_does_not_say_what_it_holds_of_a_branch(cluster, monkeypatch):
    """Nobody counts on its copies any more, but it may have records that nobody else has."""
    monkeypatch.setattr(cluster_change, "PATIENCE_SECONDS", 0.05)
    cluster.topics = {"branched": [[2, 3]]}
    cluster.branches.add("branched")
    cluster.silent.add(1)
    result = run(cluster, "drain", 1)
    assert (result.exit_code, "Other brokers have not taken over branched-0 yet" in result.stderr) == (
        1,
        True,
    ), result.output
    cluster.silent.discard(1)
    assert run(cluster, "drain", 1).exit_code == 0
    cluster.fenced.add(1)
    cluster.silent.add(1)
    assert run(cluster, "drain", 1).exit_code == 0, "it is down, and says nothing any more"
