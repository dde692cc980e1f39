"""The rendezvous hash: everybody names the same broker, evenly, and few change when a broker comes or goes."""

from collections import Counter
from uuid import UUID

import pytest

from anabranch.cluster.metadata.rows import BrokerRow
from anabranch.cluster.rendezvous import candidates, winner
from anabranch.values import BrokerId

TOPIC = UUID(int=7)
PARTITIONS = 3000


def _brokers(count: int) -> list[BrokerId]:
    return [BrokerId(number) for number in range(count)]


def _winners(brokers: list[BrokerId]) -> list[BrokerId | None]:
    return [winner(TOPIC, partition, brokers) for partition in range(PARTITIONS)]


def test_the_order_of_the_brokers_does_not_matter() -> None:
    assert _winners(_brokers(5)) == _winners(_brokers(5)[::-1])


def test_nobody_is_named_where_there_is_nobody() -> None:
    assert winner(TOPIC, 0, []) is None


@pytest.mark.parametrize("count", [2, 3, 7])
def test_partitions_are_spread_evenly(count: int) -> None:
    shares = Counter(_winners(_brokers(count)))
    assert len(shares) == count
    assert all(abs(share - PARTITIONS / count) < PARTITIONS / count / 5 for share in shares.values())


def test_first_partitions_of_many_topics_are_spread_too() -> None:
    shares = Counter(winner(UUID(int=number), 0, _brokers(4)) for number in range(PARTITIONS))
    assert all(abs(share - PARTITIONS / 4) < PARTITIONS / 4 / 5 for share in shares.values())


def test_a_broker_that_joins_takes_its_share_and_changes_nothing_else() -> None:
    before, after = _winners(_brokers(4)), _winners(_brokers(5))
    changed = [new for old, new in zip(before, after, strict=True) if old != new]
    assert set(changed) == {BrokerId(4)}
    assert abs(len(changed) - PARTITIONS / 5) < PARTITIONS / 5 / 5


def test_a_broker_that_leaves_loses_its_share_and_changes_nothing_else() -> None:
    before, after = _winners(_brokers(4)), _winners(_brokers(3))
    assert all(old == new for old, new in zip(before, after, strict=True) if old != BrokerId(3))


def _row(number: int, *, is_fenced: bool = False, is_draining: bool = False) -> BrokerRow:
    return BrokerRow(
        BrokerId(number), f"disk-{number}", number, "h", 1, is_fenced=is_fenced, is_draining=is_draining
    )


def test_brokers_that_are_silent_or_leaving_are_not_named() -> None:
    assert candidates([_row(0), _row(1, is_fenced=True), _row(2, is_draining=True)]) == [0]


def test_brokers_that_all_leave_still_serve() -> None:
    assert candidates([_row(0, is_draining=True), _row(1, is_fenced=True)]) == [0]
