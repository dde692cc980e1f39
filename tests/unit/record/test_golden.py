"""Our batches against those of two independent clients, in both directions."""

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AioBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from anabranch.record.batch import check_batch
from anabranch.record.builder import BatchBuilder, control_batch
from anabranch.record.compression import Codec
from anabranch.record.record_check import check_records
from anabranch.record.records import payload_of, records_of

Row = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]

ROWS: list[Row] = [
    (1_700_000_000_000, b"key", b"value", []),
    (1_700_000_000_005, None, b"no key", [("h", b"1"), ("h", None), ("é", b"")]),
    (1_699_999_999_999, b"gone", None, []),
    (1_700_000_000_001, b"", b"x" * 300, []),
]

# kafka-python has codecs of its own for these two; snappy and zstd need packages that we do not ask for.
KAFKA_PYTHON_CODECS = [Codec.NONE, Codec.GZIP, Codec.LZ4]

rows = st.lists(
    st.tuples(
        st.integers(0, 2**48),
        st.none() | st.binary(max_size=80),
        st.none() | st.binary(max_size=300),
        st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=2),
    ),
    min_size=1,
    max_size=6,
)


def ours(rows: list[Row], codec: int = 0) -> bytearray:
    builder = BatchBuilder(codec=codec, generation=0, producer_id=11, producer_epoch=2, base_sequence=30)
    for timestamp, key, value, headers in rows:
        builder.add(key, value, headers, timestamp_ms=timestamp)
    return builder.build()


def theirs(rows: list[Row], codec: int = 0) -> bytes:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=False,
        producer_id=11,
        producer_epoch=2,
        base_sequence=30,
        batch_size=2**30,
    )
    for offset, (timestamp, key, value, headers) in enumerate(rows):
        builder.append(offset, timestamp, key, value, headers)
    return bytes(builder.build())


def aiokafkas(rows: list[Row], codec: int) -> bytes:
    builder = AioBuilder(2, codec, 0, 11, 2, 30, 2**30)
    for offset, (timestamp, key, value, headers) in enumerate(rows):
        builder.append(offset, timestamp, key, value, headers)
    return bytes(builder.build())


def as_rows(batch: bytes | bytearray) -> list[Row]:
    return [(r.timestamp, r.key, r.value, list(r.headers)) for r in records_of(batch)]


def checked(batch: bytes) -> bytes:
    header = check_batch(batch, 0, len(batch))
    check_records(payload_of(batch, 2**20), header.record_count)
    return batch


@given(rows)
def test_uncompressed_batches_are_equal_byte_for_byte(rows: list[Row]) -> None:
    assert ours(rows).hex() == theirs(rows).hex()


@pytest.mark.parametrize("codec", KAFKA_PYTHON_CODECS)
def test_we_read_what_kafka_python_writes(codec: Codec) -> None:
    assert as_rows(checked(theirs(ROWS * 20, codec))) == ROWS * 20


@pytest.mark.parametrize("codec", KAFKA_PYTHON_CODECS)
def test_kafka_python_reads_what_we_write(codec: Codec) -> None:
    batch = DefaultRecordBatch(bytes(ours(ROWS * 20, codec)))
    assert batch.validate_crc()
    assert [(r.timestamp, r.key, r.value, list(r.headers)) for r in batch] == ROWS * 20


@pytest.mark.parametrize("codec", list(Codec))
def test_we_read_what_aiokafka_writes(codec: Codec) -> None:
    assert as_rows(checked(aiokafkas(ROWS * 20, codec))) == ROWS * 20


@pytest.mark.parametrize("codec", list(Codec))
def test_aiokafka_reads_what_we_write(codec: Codec) -> None:
    batch = AioBatch(bytes(ours(ROWS * 20, codec)))
    assert batch.validate_crc()
    assert [(r.timestamp, r.key, r.value, list(r.headers)) for r in batch] == ROWS * 20


@pytest.mark.parametrize("committed", [True, False])
def test_kafka_python_reads_our_control_batch(committed: bool) -> None:
    batch = DefaultRecordBatch(
        bytes(
            control_batch(
                committed=committed, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp_ms=5
            )
        )
    )
    assert batch.is_control_batch
    assert batch.is_transactional
    (marker,) = batch
    assert (marker.commit, marker.abort) == (committed, not committed)


def test_a_batch_has_the_bytes_it_had_yesterday() -> None:
    builder = BatchBuilder(1, generation=0)
    builder.add(b"k", b"v", [("h", None)], timestamp_ms=1)
    assert builder.build().hex() == (
        "0000000000000001" "0000003d" "00000000" "02" "34ea55f0" "0000" "00000000"
        "0000000000000001" "0000000000000001" "ffffffffffffffff" "ffff" "ffffffff" "00000001"
        "16" "00" "00" "00" "02" "6b" "02" "76" "02" "02" "68" "01"
    )  # fmt: skip
