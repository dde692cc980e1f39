"""A store that fails in every way it can: nothing acknowledged too early, nothing lost, nothing doubled; and once it is
well, records are taken again by themselves."""

import time
from pathlib import Path

from anabranch.testing.store_proxy import Trouble
from chaos.object_run import ObjectRun
from support.s3_server import S3Server

BY_TURNS = [None, *(trouble for trouble in Trouble if trouble is not Trouble.NOT_IMPLEMENTED)]
GIVEN_UP_S = 30
"""How long a broker tries to store an object."""


def test_every_fault_by_turns(tmp_path: Path, s3_server: S3Server, s3_bucket: str) -> None:
    with ObjectRun(tmp_path, s3_server, s3_bucket, brokers=3) as run:
        for trouble in BY_TURNS:
            run.suffer(trouble, seconds=1.5)
        struck = set(run.proxy.struck)
        result = run.finish()
    assert struck == set(BY_TURNS) - {None}, "every fault has met a request"
    assert result.violations == [], result.summary
    assert set(result.too_early.values()) == {0}, result.summary
    assert result.acknowledged >= 100, result.summary


def test_all_faults_mixed(tmp_path: Path, s3_server: S3Server, s3_bucket: str) -> None:
    with ObjectRun(tmp_path, s3_server, s3_bucket, seed=5) as run:
        for trouble in BY_TURNS[1:]:
            if trouble is not Trouble.DENIED:
                run.proxy.fail(trouble, share=0.05)
        time.sleep(12)
        run.proxy.heal()
        run.wait_for_acknowledgements()
        result = run.finish()
    assert result.violations == [], result.summary
    assert result.acknowledged >= 100, result.summary


def test_an_outage_that_outlasts_patience_ends_by_itself(
    tmp_path: Path, s3_server: S3Server, s3_bucket: str
) -> None:
    # One producer: librdkafka's take a whole core each while all their requests are under way.
    with ObjectRun(tmp_path, s3_server, s3_bucket, producers=1) as run:
        run.suffer(Trouble.WITHHELD_ANSWER, seconds=GIVEN_UP_S + 5)
        result = run.finish()
    assert result.violations == [], result.summary
    assert result.too_early == {Trouble.WITHHELD_ANSWER.value: 0}, result.summary


def test_brokers_killed_between_their_put_and_their_commit(
    tmp_path: Path, s3_server: S3Server, s3_bucket: str
) -> None:
    """The store has the object, nobody has been told: another life of the broker must neither lose nor double it."""
    with ObjectRun(tmp_path, s3_server, s3_bucket, brokers=3) as run:
        for broker in (0, 2, 0):
            run.kill_after_put(broker)
        result = run.finish()
    assert result.violations == [], result.summary
    assert result.acknowledged >= 100, result.summary
