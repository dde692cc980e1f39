"""Addresses: how many connections each client address has on the HTTP port, so that none can take them all."""

from anabranch.broker.requests.network import network_of


class Addresses:
    def __init__(self, connections_max: int) -> None:
        """`connections_max`: of one address at once."""
        self.connections_max = connections_max
        self._counts: dict[str, int] = {}

    def take(self, host: str) -> bool:
        """Count one more connection. False: it is one too many; it counts all the same until `give`."""
        network = network_of(host)
        count = self._counts[network] = self._counts.get(network, 0) + 1
        return count <= self.connections_max

    def give(self, host: str) -> None:
        """A connection of this address has ended."""
        network = network_of(host)
        count = self._counts[network] - 1
        if count:
            self._counts[network] = count
        else:
            del self._counts[network]

    @property
    def known_count(self) -> int:
        return len(self._counts)
