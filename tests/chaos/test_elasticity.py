"""Brokers come, go, restart and lose their disks under load, while the leader of the metadata quorum is killed. The
long run is `make elasticity`."""

from pathlib import Path

import confluent_kafka

from anabranch.testing import EmbeddedBroker
from chaos.cluster_load import QUIET
from chaos.commit_ledger import CommitLedger
from chaos.elasticity_run import ElasticityRun, is_sound
from support.waiting import wait_until

PLAN = ("add", "drain", "remove", "lost disk", "lost disk", "lost disk")


def test_brokers_come_and_go_and_every_disk_is_lost_in_turn(tmp_path: Path) -> None:
    """Among what is checked: no commit that was acknowledged to a group of a topic in the object store goes back."""
    run = ElasticityRun(
        tmp_path,
        brokers=3,
        topics=8,
        per_second=30,
        kill_after_seconds=(0.1, 0.5),
        down_seconds=(0.1, 0.3),
        plan=PLAN,
        say=print,
    )
    result = run.run()
    assert is_sound(result), result
    assert [step["name"] for step in result["steps"]] == list(PLAN)
    assert all(step["kills"] == 1 for step in result["steps"])
    assert len({step["broker"] for step in result["steps"] if step["name"] == "lost disk"}) == 3
    assert result["acknowledged"] > 0
    assert result["commits"] > 0


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
