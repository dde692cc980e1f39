"""Tokens and the ring of brokers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.cluster.tokens import partition_token, replicas_of, ring_order
from anabranch.record.partitioner import TOKENS, murmur3, partition_of

BROKERS = [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("data", "seed", "value"),
    [  # From the published test vectors of the algorithm.
        (b"", 0, 0),
        (b"", 1, 0x514E28B7),
        (b"", 0xFFFFFFFF, 0x81F16F39),
        (b"\0\0\0\0", 0, 0x2362F9DE),
        (b"aaaa", 0x9747B28C, 0x5A97808A),
        (b"aaa", 0x9747B28C, 0x283E0130),
        (b"Hello, world!", 0x9747B28C, 0x24884CBA),
        (b"The quick brown fox jumps over the lazy dog", 0x9747B28C, 0x2FA826CD),
    ],
)
def test_murmur3_is_the_published_one(data: bytes, seed: int, value: int) -> None:
    assert murmur3(data, seed) == value


def test_followers_are_the_next_two_on_the_ring() -> None:
    share = TOKENS // 4
    assert replicas_of(0, BROKERS) == [1, 2, 3]
    assert replicas_of(2 * share, BROKERS) == [3, 4, 1]
    assert replicas_of(TOKENS - 1, BROKERS) == [4, 1, 2]


def test_fewer_brokers_than_replicas_are_all_of_them() -> None:
    assert replicas_of(5, [7, 3]) == [3, 7]


@given(token=st.integers(0, TOKENS - 1), count=st.integers(1, 9))
def test_every_token_has_a_partition_and_every_ring_every_broker(token: int, count: int) -> None:
    assert 0 <= partition_of(token, count) < count
    assert sorted(ring_order(token, list(range(count)))) == list(range(count))


@pytest.mark.parametrize("topic", ["orders", "flights", "a", "__consumer_offsets"])
@pytest.mark.parametrize("brokers", [3, 4, 5, 7])
def test_a_topic_with_a_partition_per_broker_is_led_by_each_of_them_once(topic: str, brokers: int) -> None:
    leaders = [
        ring_order(partition_token(topic, p, brokers), list(range(brokers)))[0] for p in range(brokers)
    ]
    assert sorted(leaders) == list(range(brokers))
