"""A topic that has left branches keeps its offsets, and with them gaps of billions: whoever counts its records, or asks
where it ends, is told of the records alone."""

from collections.abc import Iterator

import pytest

from anabranch.broker.ring.driver import ring_driver
from anabranch.cli.branch.facts import put_together
from anabranch.modes.branch.history import records_between
from anabranch.values import LANE_BITS, Offset
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode as E
from support.broker_cluster import close_all
from support.form_cluster import EARLIEST, LATEST
from support.join_cluster import JoinCluster

LANE = 1 << LANE_BITS
Runs = list[tuple[int, int]]


class CountedCluster(JoinCluster):
    """Nothing is written but by `produce`."""

    def go_over(self, mode: str, form: str) -> None:
        assert self.alter(mode)["error_code"] == 0
        self.until(lambda: self.is_done(form) and self.leader_of(0) is not None, within_ms=60_000)
        self.run(3000)

    @classmethod
    def out_of_branches(cls, mode: str = "ring", **configs: str) -> "CountedCluster":
        """Five records of before, five of a branch, five of another one; and nothing since."""
        cluster = cls("ring", **configs)
        for _ in range(5):
            cluster.produce()
        cluster.go_over("branch", "branched")
        for _ in range(5):
            cluster.produce()
        leader = cluster.leader_of(0)
        assert leader is not None
        cluster.kill(leader)
        cluster.start(leader)
        cluster.run(8000)
        for _ in range(5):
            cluster.produce()
        cluster.go_over(mode, "stored" if mode == "object" else "kept")
        return cluster

    def runs(self) -> Runs:
        """As the leader tells those who want to count."""
        leader = self.leader_of(0)
        assert leader is not None
        body = {"topics": [{"name": "t", "partitions": [0]}], "include_rows": False}
        (topic,) = self.ask(leader, ApiKey.DESCRIBE_BRANCHES, 0, body)["topics"]
        (row,) = topic["partitions"]
        assert row["error_code"] == 0
        assert row["high_watermark"] == self.offset(LATEST)
        return [(each["start_offset"], each["end_offset"]) for each in row["line"]]

    def behind(self, committed: int) -> int:
        """The lag of a group, in the metrics of whoever leads."""
        leader = self.leader_of(0)
        assert leader is not None
        broker = self.broker(leader)
        return broker.topics.partition("t", 0).records_from(committed)

    def check_counts(self) -> None:
        runs, end = self.runs(), self.offset(LATEST)
        assert sum(last - first for first, last in runs) == len(self.written[0])
        assert runs[-1][1] == end
        assert self.behind(0) == len(self.written[0])
        assert self.behind(end - 1) == 1
        assert self.behind(end) == 0
        self.check()

    def check_end_moves(self) -> None:
        """Whoever has read everything goes on with the next record."""
        end = self.offset(LATEST)
        assert self.fetch(end)["error_code"] == 0
        assert self.fetch(end)["high_watermark"] == end
        self.produce()
        assert self.offset(LATEST) > end + LANE, "it came behind a gap"
        assert self.values(start=end) == self.written[0][-1:]
        self.check_counts()


@pytest.fixture(autouse=True)
def clusters_end() -> Iterator[None]:
    yield
    close_all()


@pytest.mark.parametrize("mode", ["ring", "solo", "object"])
def test_records_are_counted_and_the_end_is_behind_the_last_one(mode: str) -> None:
    cluster = CountedCluster.out_of_branches(mode)
    assert len(cluster.runs()) == 3
    assert cluster.offset(LATEST) < cluster.placement().start - LANE // 2
    cluster.check_counts()
    cluster.check_end_moves()


def test_all_of_it_holds_after_restarts_and_on_a_broker_that_copied_it_later() -> None:
    cluster = CountedCluster.out_of_branches()
    end = cluster.offset(LATEST)
    for broker in (1, 2, 3):
        cluster.kill(broker)
    cluster.start(1, 2, 3)
    cluster.until(lambda: cluster.leader_id is not None and cluster.is_done("kept"))
    cluster.run(5000)
    assert cluster.offset(LATEST) == end
    cluster.check_counts()
    lost = next(each for each in (2, 3) if each != cluster.leader_id)
    cluster.kill(lost, lose_disk=True)
    cluster.start(lost)
    cluster.run(15_000)
    copied = cluster.broker(lost).topics.partition("t", 0)
    assert copied.has_gaps
    assert [tuple(run) for run in copied.log.runs(copied.log.end_offset)] == cluster.runs()
    follower = next(each for each in (1, 2, 3) if each != cluster.leader_of(0))
    behind = cluster.broker(follower).topics.partition("t", 0)
    ring = ring_driver(behind)
    assert ring is not None
    heard = behind.log.end_offset + 3 * LANE + 7
    ring.mode.replica._heard_safe = Offset(heard)
    assert behind.lag == heard % LANE, "nobody knows what of it are gaps"
    cluster.check_end_moves()


def test_a_topic_with_gaps_is_read_and_counted_in_the_store_and_when_it_comes_back() -> None:
    cluster = CountedCluster.out_of_branches("object")
    end = cluster.offset(LATEST)
    cluster.go_over("ring", "kept")
    assert cluster.offset(LATEST) == end, "nothing was written since"
    cluster.check_counts()
    cluster.go_over("branch", "branched")
    assert cluster.offset(LATEST) == end
    cluster.check()
    cluster.go_over("ring", "kept")
    assert cluster.offset(LATEST) == end
    cluster.check_counts()
    cluster.check_end_moves()
    assert cluster.offset(EARLIEST) == 0


def test_a_topic_with_gaps_has_no_branches_to_look_at() -> None:
    cluster = CountedCluster.out_of_branches()
    leader = cluster.leader_of(0)
    assert leader is not None
    body = {"topics": [{"name": "t", "partitions": None}], "include_rows": True}
    (topic,) = cluster.ask(leader, ApiKey.DESCRIBE_BRANCHES, 0, body)["topics"]
    assert topic["error_code"] == E.INVALID_REQUEST
    assert cluster.ask(leader, ApiKey.DESCRIBE_BRANCHES, 0, {"topics": None})["topics"] == []
    body["include_rows"] = False
    codes = {
        broker: cluster.ask(broker, ApiKey.DESCRIBE_BRANCHES, 0, body)["topics"][0]["partitions"][0][
            "error_code"
        ]
        for broker in (1, 2, 3)
    }
    others = {E.NOT_LEADER_OR_FOLLOWER}
    assert codes.pop(leader) == 0
    assert set(codes.values()) == others


@pytest.mark.parametrize("mode", ["ring", "object"])
def test_whoever_has_read_everything_may_stay_when_all_of_it_is_deleted(mode: str) -> None:
    cluster = CountedCluster.out_of_branches(mode)
    end = cluster.offset(LATEST)
    assert cluster.delete_below(-1) == end
    cluster.run(1000)
    for broker in (1, 2, 3):
        cluster.kill(broker)
    cluster.start(1, 2, 3)
    cluster.run(12_000)
    assert cluster.offset(EARLIEST) == cluster.offset(LATEST) == end
    assert cluster.fetch_code(end) == 0
    assert cluster.runs() == []
    cluster.produce()
    assert cluster.values(start=end) == cluster.written[0][-1:]
    assert cluster.fetch_code(end - 1) == E.OFFSET_OUT_OF_RANGE


def test_what_a_topic_brings_into_branches_again_is_counted_there() -> None:
    cluster = CountedCluster.out_of_branches()
    end = cluster.offset(LATEST)
    cluster.go_over("branch", "branched")
    assert cluster.offset(LATEST) == end
    cluster.check_counts()
    cluster.check_end_moves()
    answers = {each: cluster.ask(each, ApiKey.DESCRIBE_BRANCHES, 0, {"topics": None}) for each in (1, 2, 3)}
    (facts,) = put_together(answers)
    (tip,) = facts.open_tips()
    assert records_between(facts.line_of(tip.lane), 0, tip.end) == len(cluster.written[0])
    cluster.go_over("ring", "kept")
    cluster.check_counts()
    cluster.check_end_moves()
    cluster.go_over("branch", "branched")
    cluster.check_counts()
