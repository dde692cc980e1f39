"""Messages between brokers that can be told from each other: small ones with a number."""

from uuid import UUID

from anabranch.broker.peers.messages import LeaderRow, Leads, PeerMessage
from anabranch.values import Generation


def numbered(number: int) -> Leads:
    return Leads([LeaderRow(UUID(int=0), number, 0, Generation(0), ())], is_whole=False)


def number_of(message: PeerMessage) -> int:
    assert isinstance(message, Leads)
    return message.rows[0].partition
