"""Cuts between brokers whose links go through proxies."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress

import pytest

from anabranch.config import host_and_port
from anabranch.testing import link_proxy
from anabranch.testing.link_proxy import LinkProxies
from support.numbered import number_of, numbered
from support.peer_brokers import Loopback, PeerBroker, on_loopback, until


@pytest.fixture
def proxies() -> Iterator[LinkProxies]:
    with LinkProxies() as proxies:
        yield proxies


async def linked(net: Loopback, proxies: LinkProxies, count: int) -> list[PeerBroker]:
    brokers = [net.broker(number) for number in range(1, count + 1)]
    for broker in brokers:
        proxies.behind(broker.id, "{}:{}".format(*broker.address))
    for broker in brokers:
        broker.links.connect({other.id: host_and_port(proxies.front(other.id)) for other in brokers})
    await net.all_linked(*brokers)
    return brokers


def numbers(broker: PeerBroker) -> list[int]:
    return [number_of(message) for _, message in broker.messages]


@on_loopback
async def test_links_go_through_and_keep_order(net: Loopback, proxies: LinkProxies) -> None:
    one, other = await linked(net, proxies, 2)
    for number in range(5000):
        one.links.tell(2, numbered(number))
    await until(lambda: len(other.messages) == 5000)
    assert numbers(other) == list(range(5000))


@on_loopback
async def test_a_short_cut_only_delays(net: Loopback, proxies: LinkProxies) -> None:
    one, other = await linked(net, proxies, 2)
    proxies.cut(1, 2)
    one.links.tell(2, numbered(1))
    other.links.tell(1, numbered(2))
    await asyncio.sleep(0.1)
    assert numbers(one) == numbers(other) == []
    proxies.heal()
    await until(lambda: numbers(one) == [2] and numbers(other) == [1])
    assert (one.downs, other.downs) == ([], [])


@on_loopback
async def test_a_one_way_cut_lets_the_other_way_through(net: Loopback, proxies: LinkProxies) -> None:
    one, other = await linked(net, proxies, 2)
    proxies.cut(1, 2, one_way=True)
    one.links.tell(2, numbered(1))
    other.links.tell(1, numbered(2))
    await until(lambda: numbers(one) == [2])
    assert numbers(other) == []
    proxies.heal(1, 2)
    await until(lambda: numbers(other) == [1])


@on_loopback
async def test_a_long_cut_breaks_the_link_which_comes_back_when_it_is_over(
    net: Loopback, proxies: LinkProxies, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_proxy, "DEAD_AFTER_MS", 50)
    one, other, third = await linked(net, proxies, 3)
    proxies.isolate(1)
    await until(lambda: sorted(one.downs) == [2, 3])
    await asyncio.sleep(0.2)
    assert not one.is_linked(other)
    assert other.is_linked(third)
    proxies.heal(1)
    await net.all_linked(one, other, third)


@on_loopback
async def test_a_delay_is_kept(net: Loopback, proxies: LinkProxies) -> None:
    one, other = await linked(net, proxies, 2)
    proxies.delay(1, 2, 100)
    began = asyncio.get_running_loop().time()
    one.links.tell(2, numbered(1))
    await until(lambda: other.messages)
    assert asyncio.get_running_loop().time() - began >= 0.1


@on_loopback
async def test_the_end_of_a_broker_passes_through_and_its_return_too(
    net: Loopback, proxies: LinkProxies
) -> None:
    one, other = await linked(net, proxies, 2)
    await other.close()
    await until(lambda: one.downs == [2])
    again = net.broker(2)
    proxies.behind(again.id, "{}:{}".format(*again.address))
    await net.all_linked(one, again)


@on_loopback
async def test_who_is_no_broker_is_hung_up_on(net: Loopback, proxies: LinkProxies) -> None:
    await linked(net, proxies, 2)
    reader, writer = await asyncio.open_connection(*host_and_port(proxies.front(1)))
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    with suppress(ConnectionResetError):
        assert await reader.read() == b""
    writer.close()
