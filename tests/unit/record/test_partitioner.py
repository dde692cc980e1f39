"""A key has one partition, whoever writes it."""

from zlib import crc32

import pytest

from anabranch.config.topic_settings import TOPIC_SETTINGS
from anabranch.record.partitioner import DEFAULT_PARTITIONER, PARTITIONERS, murmur2, partition_for


@pytest.mark.parametrize(
    ("key", "signed"),
    [
        # The values of Kafka's own UtilsTest.
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_javas(key: bytes, signed: int) -> None:
    assert murmur2(key) == signed & 0xFFFFFFFF


@pytest.mark.parametrize("name", PARTITIONERS)
def test_partitioner_reaches_every_partition_and_no_other(name: str) -> None:
    assert {partition_for(b"%d" % number, 7, name) for number in range(500)} == set(range(7))


@pytest.mark.parametrize("name", PARTITIONERS)
def test_record_without_key_may_go_anywhere(name: str) -> None:
    assert partition_for(None, 7, name) is None


def test_crc32_is_librdkafkas() -> None:
    assert partition_for(b"foobar", 7, "crc32") == crc32(b"foobar") % 7


@pytest.mark.parametrize(
    ("name", "partition"),
    # CRC-32 of nothing is 0; Kafka's Utils.murmur2 of it is 275646681; MurmurHash3 of it is 0.
    [("crc32", 0), ("murmur2", 275646681 % 7), ("murmur3", 0)],
)
def test_empty_key_is_hashed_as_any_other(name: str, partition: int) -> None:
    assert partition_for(b"", 7, name) == partition


def test_partitioners_are_those_a_topic_may_name() -> None:
    setting = TOPIC_SETTINGS["anabranch.partitioner"]
    assert sorted(PARTITIONERS) == sorted(setting.choices)
    assert setting.default == DEFAULT_PARTITIONER
