"""Addresses as they count where each has a limit."""

import pytest

from anabranch.broker.requests.network import network_of
from anabranch.gateway.http.addresses import Addresses


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("::1", "::/64"),
        ("2001:db8:0:1:2:3:4:5", "2001:db8:0:1::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_ipv6_address_counts_as_its_network_and_ipv4_as_itself(host: str, network: str) -> None:
    assert network_of(host) == network


def test_connections_from_one_ipv6_network_share_one_limit() -> None:
    addresses = Addresses(2)
    assert [addresses.take(f"2001:db8::{number}") for number in (1, 2, 3)] == [True, True, False]
    assert addresses.take("2001:db8:0:1::1")
    for host in ("2001:db8::1", "2001:db8::2", "2001:db8::3", "2001:db8:0:1::1"):
        addresses.give(host)
    assert addresses.known_count == 0
