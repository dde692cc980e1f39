"""Where a broker tells others to find it."""

from anabranch.broker.metadata.registration import registration
from anabranch.broker.peers.messages import RegisterBroker
from anabranch.config import NodeSettings

BASE = {"broker.id": 3, "cluster.secret.file": "s", "allow.unauthenticated": True}
BOUND, PEER_BOUND = ("127.0.0.1", 9092), ("127.0.0.1", 9192)


def test_without_anything_advertised_it_is_where_its_ports_are() -> None:
    settings = NodeSettings.load({**BASE, "peer.listen": "127.0.0.1:0", "broker.rack": "r1"})
    said = registration(settings, "d", BOUND, PEER_BOUND)
    assert said == RegisterBroker(3, "d", "127.0.0.1", 9092, "127.0.0.1", 9192, "r1")


def test_what_is_advertised_is_told_instead() -> None:
    settings = NodeSettings.load(
        {**BASE, "peer.listen": "127.0.0.1:0", "peer.advertise": "b3:7001", "advertise": "kafka3:7000"}
    )
    said = registration(settings, "d", BOUND, PEER_BOUND)
    assert (said.host, said.port, said.peer_host, said.peer_port) == ("kafka3", 7000, "b3", 7001)


def test_a_kafka_port_on_every_address_is_told_with_the_host_of_the_peer_port() -> None:
    settings = NodeSettings.load({**BASE, "listen": "0.0.0.0:9092", "peer.listen": "10.0.0.3:9192"})
    said = registration(settings, "d", ("0.0.0.0", 9092), ("10.0.0.3", 9192))
    assert (said.host, said.port) == ("10.0.0.3", 9092)
