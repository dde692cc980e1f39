"""Peers: how a broker reaches the others, and PeerHandler: how it is reached. `server/peers/links.py` does it with
sockets, `testing/fakes/net.py` without."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from anabranch.broker.peers.messages import Answer, PeerMessage, Question
from anabranch.values import BrokerId

Address = tuple[str, int]


class Hello(NamedTuple):
    """Who answered at an address."""

    cluster_id: str
    broker_id: BrokerId


class Peers(Protocol):
    def tell(self, to: BrokerId, message: PeerMessage) -> None:
        """Never waits. Lost if there is no link or no room; in order while a link lasts. Records are sent from where
        they lie, perhaps much later: give it buffers that nobody writes to any more."""
        ...

    def flush(self) -> None:
        """Let what was told leave now, instead of at the loop's next turn."""
        ...

    async def ask(self, to: BrokerId, question: Question, timeout_ms: int) -> Answer:
        """Raises PeerUnreachableError (no link, it broke, or no answer in time: whether it was done is unknown) or
        PeerRefusedError with the other side's reason."""
        ...

    def is_up(self, broker: BrokerId) -> bool: ...

    def room(self, broker: BrokerId) -> int:
        """Bytes that may be told before the next ones are lost; 0 without a link."""
        ...

    def connect(self, addresses: Mapping[BrokerId, Address]) -> None:
        """Keep links to these from now on, and to none of those named before and left out now."""
        ...

    async def join(self, address: Address) -> Hello:
        """Learn who answers there, and keep that link until `connect` has named that broker once. Raises
        PeerUnreachableError, or PeerRefusedError, whose kind is ITSELF if the address is this broker's own."""
        ...


class PeerHandler(Protocol):
    def peer_up(self, broker: BrokerId) -> None: ...

    def peer_down(self, broker: BrokerId) -> None: ...

    def heard(self, sender: BrokerId, message: PeerMessage) -> None:
        """Done before the next message of any kind is read from that link."""
        ...

    async def asked(self, sender: BrokerId, question: Question) -> Answer:
        """An AnabranchError raised here is the asker's PeerRefusedError."""
        ...
