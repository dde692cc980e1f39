"""Record batches that lie or may not be written: refused by name, nothing appended, the neighbours untouched."""

import struct
import time
import zlib
from collections.abc import Callable

import lz4.frame
import pytest

from anabranch.record.batch import HEADER, seal
from anabranch.record.builder import BatchBuilder, control_batch
from anabranch.record.compression import Codec, compress
from anabranch.record.varint import append_varint, wrapped_int64
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode as E
from support.exchanges import only
from support.raw_client import RawClient, batch_of, produce_body
from support.wire_node import MIB, WireNode, bystander

pytestmark = pytest.mark.usefixtures("others_served")

CODECS = list(Codec)
PACKED_CODECS = [codec for codec in Codec if codec != Codec.NONE]
MAX_MESSAGE_BYTES = 1_048_588
HEADER_FIELDS = {"base_offset": 0, "length": 1, "magic": 3, "crc": 4, "attributes": 5, "last_offset_delta": 6}
HEADER_FIELDS |= {
    "base_timestamp": 7,
    "max_timestamp": 8,
    "producer_id": 9,
    "epoch": 10,
    "sequence": 11,
    "record_count": 12,
}


def altered(batch: bytes, *, sealed: bool = True, **fields: int) -> bytes:
    """The batch with other numbers in its header, its checksum right again unless told otherwise."""
    header = list(HEADER.unpack_from(batch))
    for name, number in fields.items():
        header[HEADER_FIELDS[name]] = number
    changed = bytearray(HEADER.pack(*header) + batch[HEADER.size :])
    if sealed:
        seal(changed)
    return bytes(changed)


def packed_batch(codec: Codec, packed: bytes, record_count: int = 1) -> bytes:
    """A batch whose compressed section is given as it is."""
    batch = altered(batch_of(b"x"), attributes=codec, record_count=record_count)
    batch = altered(batch, last_offset_delta=record_count - 1)
    whole = bytearray(batch[: HEADER.size] + packed)
    seal(whole)
    return bytes(whole)


def assert_refused(client: RawClient, topic: str, batch: bytes | None, code: E) -> str:
    """Refused with this code and a sentence, and nothing is appended."""
    before = client.end_offset(topic)
    row = client.produce(topic, 0, batch)
    assert (row["error_code"], row["base_offset"]) == (code, -1), row
    assert client.end_offset(topic) == before
    assert row["error_message"]
    return str(row["error_message"])


# --- bytes that are not one batch -------------------------------------------------------------------------------------


def test_a_wrong_checksum_is_refused(client: RawClient, topic: str) -> None:
    batch = batch_of(b"x")
    for position in (21, 40, 61, len(batch) - 1):
        spoiled = bytearray(batch)
        spoiled[position] ^= 1
        assert_refused(client, topic, bytes(spoiled), E.CORRUPT_MESSAGE)


@pytest.mark.parametrize("magic", [0, 1])
def test_old_message_formats_are_refused_by_name(client: RawClient, topic: str, magic: int) -> None:
    batch = altered(batch_of(b"x"), magic=magic, sealed=False)
    said = assert_refused(client, topic, batch, E.INVALID_RECORD)
    assert f"v{magic}" in said


def test_a_whole_message_of_format_1_is_refused_by_name(client: RawClient, topic: str) -> None:
    body = (
        struct.pack(">bbq", 1, 0, time.time_ns() // 10**6)
        + struct.pack(">i", -1)
        + struct.pack(">i", 1)
        + b"x"
    )
    message = struct.pack(">I", zlib.crc32(body)) + body
    whole = struct.pack(">qi", 0, len(message)) + message
    assert_refused(client, topic, whole, E.INVALID_RECORD)


@pytest.mark.parametrize("magic", [3, 127, -1])
def test_a_magic_of_the_future_is_refused(client: RawClient, topic: str, magic: int) -> None:
    assert_refused(client, topic, altered(batch_of(b"x"), magic=magic, sealed=False), E.CORRUPT_MESSAGE)


@pytest.mark.parametrize("length", [-1, 0, 48, 10_000, 2**31 - 1, -(2**31)])
def test_a_batch_length_that_lies_is_refused(client: RawClient, topic: str, length: int) -> None:
    assert_refused(client, topic, altered(batch_of(b"x"), length=length, sealed=False), E.CORRUPT_MESSAGE)


@pytest.mark.parametrize("length", [0, 1, 11, 12, 17, 60, 61, 65])
def test_a_batch_cut_short_is_refused(client: RawClient, topic: str, length: int) -> None:
    code = E.CORRUPT_MESSAGE if length else E.INVALID_RECORD
    assert_refused(client, topic, batch_of(b"x")[:length], code)


def test_no_records_at_all_are_refused(client: RawClient, topic: str) -> None:
    assert_refused(client, topic, None, E.INVALID_RECORD)


@pytest.mark.parametrize("spoil", ["crc", "cut", "none"])
def test_two_batches_in_one_partition_append_nothing_whatever_the_second_is(
    client: RawClient, topic: str, spoil: str
) -> None:
    second = bytearray(batch_of(b"second"))
    if spoil == "crc":
        second[-1] ^= 1
    elif spoil == "cut":
        del second[-1]
    assert_refused(client, topic, batch_of(b"first") + bytes(second), E.INVALID_RECORD)


def test_a_bad_batch_does_not_keep_the_other_partition_from_being_written(
    client: RawClient, topic: str
) -> None:
    body = produce_body(topic, 0, batch_of(b"good"))
    bad = {"index": 1, "records": altered(batch_of(b"bad"), crc=1, sealed=False)}
    body["topic_data"][0]["partition_data"].append(bad)
    rows = only(client.ask(ApiKey.PRODUCE, 9, body)["responses"])["partition_responses"]
    assert [row["error_code"] for row in rows] == [0, E.CORRUPT_MESSAGE]
    assert (client.end_offset(topic, 0), client.end_offset(topic, 1)) == (1, 0)


# --- records that disagree with their header --------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
@pytest.mark.parametrize("count", [1, 2, 4, 10_000, 2**31 - 1])
def test_a_record_count_that_disagrees_is_refused(
    client: RawClient, topic: str, codec: Codec, count: int
) -> None:
    batch = batch_of(b"a", b"b", b"c", codec=codec)
    lying = altered(batch, record_count=count, last_offset_delta=count - 1)
    assert_refused(client, topic, lying, E.INVALID_RECORD)


@pytest.mark.parametrize("count", [0, -1, -(2**31)])
def test_a_record_count_below_one_is_refused(client: RawClient, topic: str, count: int) -> None:
    assert_refused(client, topic, altered(batch_of(b"a"), record_count=count), E.INVALID_RECORD)


@pytest.mark.parametrize("delta", [-1, 0, 3, 2**31 - 1])
def test_a_last_offset_delta_that_disagrees_with_the_count_is_refused(
    client: RawClient, topic: str, delta: int
) -> None:
    lying = altered(batch_of(b"a", b"b", b"c"), last_offset_delta=delta)
    assert_refused(client, topic, lying, E.INVALID_RECORD)


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_a_codec_nobody_knows_is_refused(client: RawClient, topic: str, codec: int) -> None:
    assert_refused(client, topic, altered(batch_of(b"a"), attributes=codec), E.UNSUPPORTED_COMPRESSION_TYPE)


@pytest.mark.parametrize("codec", PACKED_CODECS, ids=lambda codec: codec.name)
@pytest.mark.parametrize("packed", [b"", b"\0" * 40, b"\xff" * 40, b"not compressed at all"], ids=repr)
def test_records_that_are_not_in_their_codec_are_refused(
    client: RawClient, topic: str, codec: Codec, packed: bytes
) -> None:
    row = client.produce(topic, 0, packed_batch(codec, packed))
    assert row["error_code"] in (E.CORRUPT_MESSAGE, E.INVALID_RECORD), row
    assert client.end_offset(topic) == 0


@pytest.mark.parametrize("codec", PACKED_CODECS, ids=lambda codec: codec.name)
def test_compressed_records_cut_short_are_refused(client: RawClient, topic: str, codec: Codec) -> None:
    packed = compress(codec, bytes(range(256)) * 20)
    for kept in (len(packed) - 1, len(packed) // 2, 3):
        row = client.produce(topic, 0, packed_batch(codec, packed[:kept]))
        assert row["error_code"] in (E.CORRUPT_MESSAGE, E.INVALID_RECORD), row
    assert client.end_offset(topic) == 0


def records_section(*values: bytes) -> bytes:
    return batch_of(*values)[HEADER.size :]


def frames(codec: Codec, shape: str) -> bytes:
    """Two whole records in a section that a broker could read and some client cannot."""
    section = records_section(b"a", b"b")
    first, second = section[: len(section) // 2], section[len(section) // 2 :]
    if shape == "two":
        return compress(codec, first) + compress(codec, second)
    if shape == "empty first":
        return compress(codec, b"") + compress(codec, section)
    return compress(codec, section) + compress(codec, b"")


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4], ids=lambda codec: codec.name)
@pytest.mark.parametrize("shape", ["two", "empty first", "empty last"])
@pytest.mark.parametrize("config", [{}, {"compression_type": "zstd"}], ids=["kept", "recompressed"])
def test_frames_that_follow_one_another_are_refused_because_clients_cannot_read_them(
    client: RawClient, topic: str, codec: Codec, shape: str, config: dict[str, str]
) -> None:
    """librdkafka reads the first gzip member only, aborts its process if that is empty, and stays for ever before a
    batch of two LZ4 frames."""
    client.create_topic(f"{topic}-f", **config)
    said = assert_refused(
        client, f"{topic}-f", packed_batch(codec, frames(codec, shape), 2), E.INVALID_RECORD
    )
    assert "one frame" in said


@pytest.mark.parametrize("shape", ["two", "empty first", "empty last"])
def test_frames_of_zstd_that_follow_one_another_are_taken_because_clients_read_them(
    client: RawClient, topic: str, shape: str
) -> None:
    batch = packed_batch(Codec.ZSTD, frames(Codec.ZSTD, shape), 2)
    assert client.produce(topic, 0, batch)["error_code"] == 0


def test_linked_blocks_of_lz4_are_refused_because_java_cannot_read_them(
    client: RawClient, topic: str
) -> None:
    packer = lz4.frame.LZ4FrameCompressor(block_linked=True)
    packed = packer.begin() + packer.compress(records_section(b"a")) + packer.flush()
    said = assert_refused(client, topic, packed_batch(Codec.LZ4, packed), E.INVALID_RECORD)
    assert "independent" in said


def test_a_record_without_a_key_is_refused_by_a_compacted_topic(client: RawClient, topic: str) -> None:
    client.create_topic(f"{topic}-c", cleanup_policy="compact")
    builder = BatchBuilder()
    builder.add(None, b"value", timestamp_ms=time.time_ns() // 10**6)
    assert_refused(client, f"{topic}-c", bytes(builder.build()), E.INVALID_RECORD)


# --- what clients may not write ---------------------------------------------------------------------------------------


def test_a_control_batch_is_refused(client: RawClient, topic: str) -> None:
    marker = control_batch(
        committed=True,
        producer_id=1,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp_ms=time.time_ns() // 10**6,
    )
    assert_refused(client, topic, bytes(marker), E.INVALID_RECORD)


def test_a_transactional_batch_is_refused_with_a_sentence(client: RawClient, topic: str) -> None:
    batch = batch_of(b"x", transactional=True, producer_id=1, producer_epoch=0, base_sequence=0)
    assert "transaction" in assert_refused(client, topic, batch, E.INVALID_REQUEST)


def test_a_delete_horizon_is_refused(client: RawClient, topic: str) -> None:
    assert_refused(client, topic, batch_of(b"x", delete_horizon_ms=5), E.INVALID_RECORD)


def test_a_log_append_time_set_by_the_producer_is_refused(client: RawClient, topic: str) -> None:
    assert_refused(client, topic, batch_of(b"x", log_append_time=True), E.INVALID_TIMESTAMP)


@pytest.mark.parametrize("ahead_ms", [3_700_000, 2**62])
def test_a_time_too_far_ahead_is_refused(client: RawClient, topic: str, ahead_ms: int) -> None:
    time_ms = time.time_ns() // 10**6 + ahead_ms
    batch = altered(batch_of(b"x"), base_timestamp=time_ms, max_timestamp=time_ms)
    assert_refused(client, topic, batch, E.INVALID_TIMESTAMP)


def timed_batch(base_ms: int, *deltas_ms: int, codec: Codec = Codec.NONE) -> bytes:
    """Records whose times are a first one and deltas, as large as they may be; the header knows the newest as a reader
    adds it up."""
    payload = bytearray()
    for number, delta_ms in enumerate(deltas_ms):
        body = bytearray(b"\0")
        append_varint(body, delta_ms)
        append_varint(body, number)
        body += b"\x06key\x02v\0"
        append_varint(payload, len(body))
        payload += body
    newest_ms = max(wrapped_int64(base_ms + delta_ms) for delta_ms in deltas_ms)
    count = len(deltas_ms)
    batch = altered(batch_of(*[b"x"] * count, codec=codec), base_timestamp=base_ms, max_timestamp=newest_ms)
    whole = bytearray(batch[: HEADER.size] + compress(codec, payload))
    seal(whole)
    return bytes(whole)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4], ids=lambda codec: codec.name)
@pytest.mark.parametrize(
    ("base_ms", "deltas_ms", "at_fault"),
    [
        (2**63 - 1, [2**63 - 1], [0]),
        (2**63 - 1, [0, 1], [0, 1]),
        (1, [0, 2**63 - 1], [1]),
        (-1, [0, -(2**63)], [1]),
        (-(2**63), [0, -1], [1]),
    ],
)
def test_a_time_that_does_not_fit_64_bits_is_refused_and_its_record_named(
    client: RawClient, topic: str, base_ms: int, deltas_ms: list[int], at_fault: list[int], codec: Codec
) -> None:
    """A reader's sum begins anew below zero or far ahead: it hid from the limits, and hid records next to it."""
    batch = timed_batch(base_ms, *deltas_ms, codec=codec)
    row = client.produce(topic, 0, batch)
    assert row["error_code"] == E.INVALID_TIMESTAMP, row
    assert [each["batch_index"] for each in row["record_errors"]] == at_fault
    assert client.end_offset(topic) == 0


@pytest.mark.parametrize("base_ms", [0, -1, -5, -(2**63)])
def test_a_time_before_1970_is_taken_as_kafka_does(client: RawClient, topic: str, base_ms: int) -> None:
    assert client.produce(topic, 0, timed_batch(base_ms, 0, 3))["error_code"] == 0
    assert client.produce(topic, 0, timed_batch(base_ms, 0, 3, codec=Codec.LZ4))["error_code"] == 0


@pytest.mark.parametrize("base_ms", [2**63 - 1, -(2**63)])
def test_a_topic_that_sets_times_itself_takes_any(client: RawClient, topic: str, base_ms: int) -> None:
    client.create_topic(f"{topic}-a", message_timestamp_type="LogAppendTime")
    assert client.produce(f"{topic}-a", 0, timed_batch(base_ms, 0, 1, -1))["error_code"] == 0


# --- too large -------------------------------------------------------------------------------------------------------


def test_a_batch_over_max_message_bytes_is_refused_and_one_at_the_limit_is_not(
    client: RawClient, topic: str
) -> None:
    largest = batch_of(b"x" * (MAX_MESSAGE_BYTES - 80))
    fitting = batch_of(b"x" * (MAX_MESSAGE_BYTES - 80 + MAX_MESSAGE_BYTES - len(largest)))
    assert len(fitting) == MAX_MESSAGE_BYTES
    too_large = batch_of(b"x" * (MAX_MESSAGE_BYTES - 80 + MAX_MESSAGE_BYTES - len(largest) + 1))
    assert "max.message.bytes" in assert_refused(client, topic, too_large, E.MESSAGE_TOO_LARGE)
    assert client.produce(topic, 0, fitting)["error_code"] == 0


def test_a_topic_may_have_a_lower_limit(client: RawClient, topic: str) -> None:
    client.create_topic(f"{topic}-low", max_message_bytes="100")
    assert_refused(client, f"{topic}-low", batch_of(b"x" * 100), E.MESSAGE_TOO_LARGE)


# --- bombs -----------------------------------------------------------------------------------------------------------

BOMB_BYTES = 256 * MIB
UNPACKED_BYTES_MAX = 64 * MIB


def zeros(codec: Codec) -> bytes:
    """256 MiB in one frame."""
    return compress(codec, bytes(BOMB_BYTES), 1)


def raw_snappy_that_lies(claim: int) -> Callable[[], bytes]:
    """Eight kilobytes of bare snappy that announce a size."""

    def build() -> bytes:
        announced = bytearray()
        while claim >> (7 * len(announced)) > 127:
            announced.append(claim >> (7 * len(announced)) & 127 | 128)
        announced.append(claim >> (7 * len(announced)) & 127)
        return bytes(announced) + b"\xfe\x01\x00" * 2700

    return build


BOMBS: dict[str, tuple[Codec, Callable[[], bytes]]] = {
    "gzip": (Codec.GZIP, lambda: zeros(Codec.GZIP)),
    "snappy": (Codec.SNAPPY, lambda: zeros(Codec.SNAPPY)),
    "lz4": (Codec.LZ4, lambda: zeros(Codec.LZ4)),
    "zstd": (Codec.ZSTD, lambda: compress(Codec.ZSTD, bytes(16 * MIB)) * (BOMB_BYTES // (16 * MIB))),
    "zstd in one frame": (Codec.ZSTD, lambda: zeros(Codec.ZSTD)),
    "snappy that announces 256 MiB": (Codec.SNAPPY, raw_snappy_that_lies(BOMB_BYTES)),
    "snappy that announces 63 MiB": (Codec.SNAPPY, raw_snappy_that_lies(63 * MIB)),
}


class TestBombs:
    @pytest.fixture
    def memory_growth_max(self) -> int:
        """Two workers unpack at once at most, and each may hold its result twice while it puts it together.

        The four requests themselves are there twice, as frames and as copies for the workers.
        """
        # Two workers, each with the chunks and their sum; four requests of 16 MiB, each read and copied; and the
        # allocator's slack. Far below what the bombs would unpack to: four times 256 MiB.
        return 2 * 2 * UNPACKED_BYTES_MAX + 4 * 2 * 16 * MIB + 128 * MIB

    @pytest.mark.parametrize("name", BOMBS)
    def test_a_bomb_is_refused_while_somebody_else_is_served(
        self, node: WireNode, client: RawClient, topic: str, name: str
    ) -> None:
        codec, build = BOMBS[name]
        client.create_topic(f"{topic}-wide", max_message_bytes=str(32 * MIB))
        bomb = packed_batch(codec, build())
        bombers = [RawClient(node.bootstrap) for _ in range(4)]
        with bystander(node) as other:
            for bomber in bombers:
                bomber.send(ApiKey.PRODUCE, 9, produce_body(f"{topic}-wide", 0, bomb))
            for bomber in bombers:
                answer = bomber.receive(ApiKey.PRODUCE, 9)
                row = only(only(answer["responses"])["partition_responses"])
                assert row["error_code"] in (E.MESSAGE_TOO_LARGE, E.CORRUPT_MESSAGE), row
                bomber.sock.close()
        assert other.seconds, "nobody else was served meanwhile"
        assert client.end_offset(f"{topic}-wide") == 0

    def test_a_bomb_below_the_limit_with_wrong_contents_is_refused(
        self, client: RawClient, topic: str
    ) -> None:
        bomb = packed_batch(Codec.ZSTD, compress(Codec.ZSTD, bytes(50 * MIB)))
        assert_refused(client, topic, bomb, E.INVALID_RECORD)

    def test_a_batch_that_takes_long_to_check_is_not_overtaken_by_the_next(
        self, client: RawClient, topic: str
    ) -> None:
        large = batch_of(
            *[b"x" * 1000] * 20_000, codec=Codec.ZSTD, producer_id=77, producer_epoch=0, base_sequence=0
        )
        small = batch_of(b"y", producer_id=77, producer_epoch=0, base_sequence=20_000)
        sent = [client.send(ApiKey.PRODUCE, 9, produce_body(topic, 0, batch)) for batch in (large, small)]
        answers = [client.receive(ApiKey.PRODUCE, 9, correlation_id) for correlation_id in sent]
        rows = [only(only(answer["responses"])["partition_responses"]) for answer in answers]
        assert [(row["error_code"], row["base_offset"]) for row in rows] == [(0, 0), (0, 20_000)]


# --- idempotent producers ---------------------------------------------------------------------------------------------


def sequenced(sequence: int, *values: bytes, epoch: int = 0) -> bytes:
    return batch_of(*values, producer_id=5, producer_epoch=epoch, base_sequence=sequence)


def test_a_fenced_producer_epoch_is_refused(client: RawClient, topic: str) -> None:
    assert client.produce(topic, 0, sequenced(0, b"new", epoch=3))["error_code"] == 0
    assert_refused(client, topic, sequenced(0, b"old", epoch=2), E.INVALID_PRODUCER_EPOCH)


@pytest.mark.parametrize("sequence", [1, 3, 2**31 - 1])
def test_a_gap_in_the_sequence_is_refused(client: RawClient, topic: str, sequence: int) -> None:
    assert client.produce(topic, 0, sequenced(0, b"a", b"b"))["error_code"] == 0
    assert_refused(client, topic, sequenced(sequence, b"c"), E.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert client.produce(topic, 0, sequenced(2, b"c"))["base_offset"] == 2


def test_a_new_epoch_begins_at_sequence_0(client: RawClient, topic: str) -> None:
    assert client.produce(topic, 0, sequenced(0, b"a"))["error_code"] == 0
    assert_refused(client, topic, sequenced(1, b"b", epoch=1), E.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert client.produce(topic, 0, sequenced(0, b"b", epoch=1))["base_offset"] == 1


def test_a_duplicate_is_answered_with_the_offset_of_its_original(client: RawClient, topic: str) -> None:
    batches = [sequenced(number, b"x") for number in range(5)]
    offsets = [client.produce(topic, 0, batch)["base_offset"] for batch in batches]
    assert offsets == [0, 1, 2, 3, 4]
    for batch, offset in zip(batches, offsets, strict=True):
        row = client.produce(topic, 0, batch)
        assert (row["error_code"], row["base_offset"]) == (0, offset)
    assert client.end_offset(topic) == 5


@pytest.mark.parametrize(
    "fields",
    [
        {"sequence": -1},
        {"sequence": -(2**31)},
        {"epoch": -1},
        {"epoch": -(2**15)},
        {"epoch": -1, "sequence": -1},
    ],
    ids=str,
)
def test_a_producer_id_without_epoch_or_sequence_is_refused(
    client: RawClient, topic: str, fields: dict[str, int]
) -> None:
    assert_refused(client, topic, altered(sequenced(0, b"x"), **fields), E.INVALID_RECORD)


@pytest.mark.parametrize("producer_id", [-2, -(2**63)])
def test_a_producer_id_below_minus_1_is_none_as_in_kafka(
    client: RawClient, topic: str, producer_id: int
) -> None:
    """Kafka's `hasProducerId` is whether it is above -1."""
    batch = altered(sequenced(7, b"x"), producer_id=producer_id)
    offsets = [client.produce(topic, 0, batch)["base_offset"] for _ in range(2)]
    assert offsets == [0, 1]  # A repeat is told from nothing.
