"""A key has one home, whoever writes it."""

import pytest

from anabranch.gateway.partitioner import murmur2, partition_for


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


def test_both_partitioners_stay_within_the_partitions() -> None:
    for name in ("murmur2", "murmur3"):
        seen = {partition_for(b"%d" % number, 7, name) for number in range(500)}
        assert seen == set(range(7)), name
