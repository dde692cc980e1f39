"""Settings of peer links: nobody opens a cluster to strangers by mistake."""

import pytest

from anabranch.config import NodeSettings
from anabranch.errors import InvalidConfigError

SECRET = {"cluster.secret.file": "secret"}
TLS = {"peer.tls.cert": "c", "peer.tls.key": "k", "peer.tls.ca": "a"}


def refusal(**given: object) -> str:
    with pytest.raises(InvalidConfigError) as caught:
        NodeSettings.load({name.replace("_", "."): value for name, value in given.items()})
    return str(caught.value)


def test_a_node_alone_has_no_peer_port() -> None:
    assert NodeSettings.load().peer_listen is None


@pytest.mark.parametrize("proof", [SECRET, TLS])
def test_brokers_that_know_each_other_may_listen_anywhere(proof: dict[str, str]) -> None:
    settings = NodeSettings.load(
        {"peer.listen": "10.0.0.1:9192", "peer.join": "10.0.0.2:9192,[fe80::1]:9192", **proof}
    )
    assert settings.peer_join == ("10.0.0.2:9192", "[fe80::1]:9192")


def test_a_port_for_other_machines_needs_a_secret_or_certificates_even_if_told_otherwise() -> None:
    text = refusal(peer_listen="10.0.0.1:9192", allow_unauthenticated=True, listen="10.0.0.1:9092")
    assert text.startswith("peer.listen=10.0.0.1:9192 can be reached from other machines")
    assert "cluster.secret.file" in text


def test_a_port_of_this_machine_needs_one_too_unless_told_otherwise() -> None:
    assert "--allow-unauthenticated if that is meant" in refusal(peer_listen="127.0.0.1:9192")
    NodeSettings.load({"peer.listen": "127.0.0.1:9192", "allow.unauthenticated": "true"})


def test_certificate_key_and_authority_belong_together() -> None:
    assert "set all three" in refusal(peer_listen="127.0.0.1:9192", peer_tls_cert="c", peer_tls_key="k")


def test_joining_needs_a_port_of_ones_own_and_addresses() -> None:
    assert "peer.join without peer.listen" in refusal(peer_join="127.0.0.1:9192")
    text = refusal(peer_listen="127.0.0.1:9192", cluster_secret_file="s", peer_join="a:1,b")
    assert text.startswith("peer.join: b is not HOST:PORT")


def test_an_address_nobody_can_dial_needs_another_to_be_told() -> None:
    assert "peer.advertise" in refusal(peer_listen="0.0.0.0:9192", cluster_secret_file="s")
    NodeSettings.load({"peer.listen": "0.0.0.0:9192", "peer.advertise": "b1:9192", **SECRET})
