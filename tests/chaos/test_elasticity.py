"""Brokers come, go, restart and lose their disks under load, while the leader of the metadata quorum is killed. The
long run is `make elasticity`."""

from pathlib import Path

import confluent_kafka

from anabranch.testing import EmbeddedBroker
from chaos.cluster_load import QUIET
from chaos.commit_ledger import CommitLedger
from chaos.elasticity_run import ElasticityRun, is_sound
from support.waiting import wait_until


def test_one_round_with_few_topics(tmp_path: Path) -> None:
    result = ElasticityRun(tmp_path, brokers=3, topics=8, rounds=1, seed=7, whole_seconds_max=120).run()
    assert is_sound(result), result
    assert len(result["steps"]) == 5
    assert sum(step["kills"] for step in result["steps"]) == 5
    assert result["acknowledged"] > 0


def test_acknowledged_commits_survive_the_loss_of_every_disk_in_turn(tmp_path: Path) -> None:
    run = ElasticityRun(tmp_path, brokers=3, topics=0, rounds=3, seed=1, plan=("lost disk",))
    result = run.run()
    assert is_sound(result), result
    assert {step["broker"] for step in result["steps"]} == {0, 1, 2}
    assert result["commits"] > 20


def test_a_lost_commit_is_found(tmp_path: Path) -> None:
    """The ledger itself: a commit that is found lower than it was acknowledged is a loss, also by a new member."""
    with EmbeddedBroker() as broker:
        producer = confluent_kafka.Producer({**QUIET, "bootstrap.servers": broker.bootstrap})
        for number in range(20):
            producer.produce("t", b"%d" % number, partition=0)
        assert producer.flush(30) == 0
        ledger = CommitLedger(broker.bootstrap, "t", 1)
        ledger.start()
        wait_until(lambda: ledger.acknowledged_count > 0, "a commit to be acknowledged")
        ledger.stop()
        ledger.check()
        assert ledger.lost == []
        thief = confluent_kafka.Consumer(
            {**QUIET, "bootstrap.servers": broker.bootstrap, "group.id": ledger.group}
        )
        thief.commit(offsets=[confluent_kafka.TopicPartition("t", 0, 1)], asynchronous=False)
        thief.close()
        ledger.check()
        assert len(ledger.lost) == 1
