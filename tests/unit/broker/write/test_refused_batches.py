"""A batch that arrives behind a refused one is refused like it, and not called out of order: librdkafka bumps its epoch
for that, and then writes records twice that were in the log already."""

import errno
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from anabranch.broker.ring.driver import ring_driver
from anabranch.broker.topics.partition import Partition
from anabranch.broker.write.refused_batches import NOTED_MAX, RefusedBatches
from anabranch.errors import (
    AnabranchError,
    EarlierBatchRefusedError,
    InvalidRecordError,
    NotEnoughCopiesError,
    NotOwnerError,
    OutOfOrderSequenceError,
    StorageError,
)
from anabranch.record.batch import BatchHeader, read_header
from anabranch.record.producer_table import BATCHES_REMEMBERED, ProducerTable
from anabranch.values import Offset, TopicPartition
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode
from support.broker_bench import Bench, batch_of, in_loop, turn
from support.broker_cluster import close_all
from support.ring_cluster import RingCluster

RETRIED_MS = 1000
GAP = OutOfOrderSequenceError("a gap")
TOO_FEW = NotEnoughCopiesError("too few copies")


@pytest.fixture(autouse=True)
def clusters_end() -> Iterator[None]:
    yield
    close_all()


def sent(sequence: int, *, producer_id: int = 1, epoch: int = 0) -> BatchHeader:
    return read_header(batch_of(producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence))


def partition_with(*written: BatchHeader) -> Any:
    """As much of a partition as is looked at."""
    table = ProducerTable()
    for number, header in enumerate(written):
        table.note(header, Offset(number), 0)
    return SimpleNamespace(topic_id=UUID(int=1), id=TopicPartition("t", 0), producers=table)


def test_a_gap_behind_a_refused_batch_is_refused_for_the_moment() -> None:
    refused, partition = RefusedBatches(RETRIED_MS), partition_with(sent(0))
    assert refused.told(partition, sent(1), TOO_FEW, 0) is TOO_FEW
    assert isinstance(refused.told(partition, sent(2), GAP, 0), EarlierBatchRefusedError)
    assert isinstance(refused.told(partition, sent(3), GAP, RETRIED_MS), EarlierBatchRefusedError)


def test_a_gap_that_no_refusal_explains_is_one() -> None:
    refused, partition = RefusedBatches(RETRIED_MS), partition_with(sent(0))
    assert refused.told(partition, sent(2), GAP, 0) is GAP
    refused.told(partition, sent(3), TOO_FEW, 0)
    assert refused.told(partition, sent(4), GAP, 0) is GAP, "1 is missing, and nobody refused it"
    refused.told(partition, sent(1), InvalidRecordError("never"), 0)
    assert refused.told(partition, sent(2), GAP, 0) is GAP, "its client does not send 1 again"


def test_a_refusal_is_over_once_the_batch_was_written() -> None:
    refused, partition = RefusedBatches(RETRIED_MS), partition_with(sent(0))
    refused.told(partition, sent(1), TOO_FEW, 0)
    partition.producers.note(sent(1), Offset(1), 0)
    assert refused.told(partition, sent(3), GAP, 0) is GAP


def test_a_refusal_is_over_once_no_client_repeats_the_batch() -> None:
    refused, partition = RefusedBatches(RETRIED_MS), partition_with(sent(0))
    refused.told(partition, sent(1), TOO_FEW, 0)
    assert refused.told(partition, sent(2), GAP, RETRIED_MS + 1) is GAP


@pytest.mark.parametrize("other", [{"producer_id": 2}, {"epoch": 1}])
def test_a_refusal_explains_gaps_of_its_own_producer_and_epoch_only(other: dict[str, int]) -> None:
    refused, partition = RefusedBatches(RETRIED_MS), partition_with(sent(0), sent(0, **other))
    refused.told(partition, sent(1), TOO_FEW, 0)
    assert refused.told(partition, sent(2, **other), GAP, 0) is GAP


def test_a_new_epoch_whose_first_batch_was_refused_is_not_out_of_order_either() -> None:
    refused, partition = RefusedBatches(RETRIED_MS), partition_with(sent(7))
    refused.told(partition, sent(0, epoch=1), TOO_FEW, 0)
    for sequence in range(1, 10):
        assert isinstance(refused.told(partition, sent(sequence, epoch=1), GAP, 0), EarlierBatchRefusedError)


def test_a_stale_epoch_does_not_erase_what_the_new_one_was_refused() -> None:
    refused, partition = RefusedBatches(RETRIED_MS), partition_with(sent(7))
    refused.told(partition, sent(0, epoch=1), TOO_FEW, 0)
    refused.told(partition, sent(8), TOO_FEW, 0)
    assert isinstance(refused.told(partition, sent(1, epoch=1), GAP, 0), EarlierBatchRefusedError)


def test_a_batch_that_was_then_refused_for_good_explains_no_gap() -> None:
    refused, partition = RefusedBatches(RETRIED_MS), partition_with(sent(0))
    refused.told(partition, sent(1), TOO_FEW, 0)
    refused.told(partition, sent(1), InvalidRecordError("never"), 0)
    assert refused.told(partition, sent(2), GAP, 0) is GAP
    assert not len(refused)


def test_sequences_may_wrap_around() -> None:
    last = 2**31 - 1
    refused, partition = RefusedBatches(RETRIED_MS), partition_with(sent(last - 1))
    refused.told(partition, sent(last), TOO_FEW, 0)
    assert isinstance(refused.told(partition, sent(0), GAP, 0), EarlierBatchRefusedError)
    unknown = partition_with()
    refused.told(unknown, sent(last, producer_id=2), TOO_FEW, 0)
    with pytest.raises(EarlierBatchRefusedError):
        refused.check_start(unknown, sent(0, producer_id=2), 0)


def test_an_unknown_producer_that_was_sent_elsewhere_may_begin_where_it_went_on() -> None:
    """It may have written the refused batches to the leader of that time, or on another side of a split."""
    refused, partition = RefusedBatches(RETRIED_MS), partition_with()
    refused.told(partition, sent(0), NotOwnerError("not here"), 0)
    refused.check_start(partition, sent(100), 0)


def test_a_producer_that_was_forgotten_since_it_was_refused_may_go_on() -> None:
    refused, partition = RefusedBatches(RETRIED_MS), partition_with(sent(4))
    refused.told(partition, sent(5), TOO_FEW, 0)
    partition.producers.note(sent(5), Offset(1), 0)
    partition.producers.expire(1)
    refused.check_start(partition, sent(6), 0)


def test_those_that_follow_the_first_batch_need_not_wait_until_it_is_written() -> None:
    refused, partition = RefusedBatches(RETRIED_MS), partition_with()
    for sequence in range(3):
        refused.told(partition, sent(sequence), TOO_FEW, 0)
    for sequence in range(3):
        refused.check_start(partition, sent(sequence), 0)


@pytest.mark.parametrize("wrong", [{"base_sequence": -1}, {"producer_epoch": -1}, {"producer_id": -1}])
def test_a_header_that_no_producer_sends_is_not_remembered(wrong: dict[str, int]) -> None:
    refused, partition = RefusedBatches(RETRIED_MS), partition_with()
    refused.told(partition, sent(0)._replace(**wrong), TOO_FEW, 0)
    assert not len(refused)


def test_an_unknown_producer_does_not_begin_behind_a_refused_batch() -> None:
    refused, partition = RefusedBatches(RETRIED_MS), partition_with()
    refused.told(partition, sent(5), TOO_FEW, 0)
    with pytest.raises(EarlierBatchRefusedError, match="send that one first"):
        refused.check_start(partition, sent(6), 0)
    refused.check_start(partition, sent(6), RETRIED_MS + 1)
    refused.check_start(partition, sent(5), 0)
    refused.check_start(partition, sent(6), 0)


def test_the_first_of_many_refused_batches_is_remembered_while_its_client_repeats_it() -> None:
    refused, partition = RefusedBatches(RETRIED_MS), partition_with(sent(0))
    for sequence in range(1, 2 * BATCHES_REMEMBERED):
        refused.told(partition, sent(sequence), TOO_FEW, 0)
    assert isinstance(refused.told(partition, sent(50), GAP, 0), EarlierBatchRefusedError)


def test_what_was_written_since_gives_way_to_what_is_refused_now() -> None:
    refused, partition = RefusedBatches(RETRIED_MS), partition_with(sent(0))
    for sequence in range(1, 20):
        refused.told(partition, sent(sequence), TOO_FEW, 0)
        assert isinstance(refused.told(partition, sent(sequence + 1), GAP, 0), EarlierBatchRefusedError)
        partition.producers.note(sent(sequence), Offset(sequence), 0)


def test_no_more_producers_are_remembered_than_may_be_and_old_ones_leave() -> None:
    refused, partition = RefusedBatches(RETRIED_MS), partition_with()
    for producer_id in range(NOTED_MAX + 10):
        refused.told(partition, sent(0, producer_id=producer_id), TOO_FEW, 0)
    assert len(refused) == NOTED_MAX
    refused.told(partition, sent(0, producer_id=0), TOO_FEW, RETRIED_MS + 1)
    refused.drop_old(RETRIED_MS + 1)
    assert len(refused) == 1


@in_loop
async def test_a_batch_behind_one_that_the_disk_refused_waits_for_it() -> None:
    bench = Bench()
    partition = await bench.topic("t")
    assert await error_of(bench, partition, 0) is None
    bench.disk.fail_next("write", errno.ENOSPC, path_contains="t-0")
    assert isinstance(await error_of(bench, partition, 1), StorageError)
    assert isinstance(await error_of(bench, partition, 2), EarlierBatchRefusedError)
    assert [await error_of(bench, partition, sequence) for sequence in (1, 2)] == [None, None]
    assert isinstance(await error_of(bench, partition, 4), OutOfOrderSequenceError)
    assert partition.log.end_offset == 3


async def error_of(bench: Bench, partition: Partition, sequence: int) -> AnabranchError | None:
    batch = batch_of(producer_id=1, producer_epoch=0, base_sequence=sequence)
    answered = bench.submit(partition, batch)
    await turn()
    (job,) = answered
    return job.error


def test_batches_behind_one_that_had_too_few_copies_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As elasticity with seed 7 found it: the follower was back between two batches of librdkafka."""
    cluster = RingCluster()
    cluster.start(1, 2, 3)
    cluster.settle()
    cluster.topic("t")
    leader = cluster.led("t") or 0
    ring = ring_driver(cluster.partition(leader, "t"))
    assert ring is not None

    def produce(sequence: int) -> int:
        records = bytes(batch_of(producer_id=1, producer_epoch=0, base_sequence=sequence))
        data = [{"name": "t", "partition_data": [{"index": 0, "records": records}]}]
        body = {"transactional_id": None, "acks": -1, "timeout_ms": 5000, "topic_data": data}
        answer = cluster.ask(leader, ApiKey.PRODUCE, 12, body)
        return int(answer["responses"][0]["partition_responses"][0]["error_code"])

    assert produce(0) == ErrorCode.NONE
    monkeypatch.setattr(ring, "refusal", lambda: TOO_FEW)
    assert produce(1) == ErrorCode.NOT_ENOUGH_REPLICAS
    monkeypatch.undo()
    assert [produce(2), produce(3)] == [ErrorCode.NOT_ENOUGH_REPLICAS] * 2
    assert [produce(sequence) for sequence in (1, 2, 3)] == [ErrorCode.NONE] * 3
    assert produce(5) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
