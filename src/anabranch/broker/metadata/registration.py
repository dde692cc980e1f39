"""What a broker says of itself when it registers: who it is, and where others find it."""

from anabranch.broker.peers.messages import RegisterBroker
from anabranch.broker.peers.peers import Address
from anabranch.config import NodeSettings, host_and_port
from anabranch.values import BrokerId

ANYWHERE = ("0.0.0.0", "::")


def registration(
    settings: NodeSettings, directory_id: str, bound: Address, peer_bound: Address
) -> RegisterBroker:
    """`bound` and `peer_bound` are where its two ports really are; they are told where nothing else is advertised."""
    peer_host, peer_port = host_and_port(settings.peer_advertise) if settings.peer_advertise else peer_bound
    host, port = host_and_port(settings.advertise) if settings.advertise else bound
    if host in ANYWHERE:
        host = peer_host  # Where other brokers reach it, clients may as well.
    return RegisterBroker(
        BrokerId(settings.broker_id), directory_id, host, port, peer_host, peer_port, settings.broker_rack
    )
