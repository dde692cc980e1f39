"""LeadershipNews: tells the other brokers which partitions this one leads, and notices when something of it was lost.

A message can be lost without its link: the other broker may still be starting, or there may be no room on the link.
Every `Leads` therefore has a number, counted for each peer, and every `Ping` names the last one. A broker that hears of
a number it has not seen asks for the whole list (`AskLeads`). On one link messages keep their order, so a number that
is missing when the ping comes was lost.
"""

from collections.abc import Callable

from anabranch.broker.peers.messages import AskLeads, LeaderRow, Leads, Ping
from anabranch.broker.peers.peers import Peers
from anabranch.values import BrokerId

ROWS_PER_MESSAGE_MAX = 1000
PINGS_PER_QUESTION = 4
"""The answer to a question may be behind other messages: so many pings pass before it is asked again."""


class LeadershipNews:
    def __init__(self, peers: Peers, led: Callable[[], list[LeaderRow]]) -> None:
        self._peers = peers
        self._led = led
        self._told: dict[BrokerId, int] = {}
        """The number of the last message to each peer."""
        self._seen: dict[BrokerId, int] = {}
        """Of each peer: the last number up to which nothing is missing."""
        self._pings_left: dict[BrokerId, int] = {}
        """Pings of a peer to let pass before it is asked again."""

    # --- telling -------------------------------------------------------------------------------------------------

    def tell(self, to: BrokerId, rows: list[LeaderRow]) -> None:
        """What has changed."""
        self._send(to, rows, is_whole=False)

    def tell_all(self, to: BrokerId) -> None:
        self._send(to, self._led(), is_whole=True)

    def ping(self, to: BrokerId) -> None:
        self._peers.tell(to, Ping(self._told.get(to, 0)))

    def _send(self, to: BrokerId, rows: list[LeaderRow], *, is_whole: bool) -> None:
        for start in range(0, max(1, len(rows)), ROWS_PER_MESSAGE_MAX):
            if rows or is_whole:
                self._told[to] = number = self._told.get(to, 0) + 1
                some = rows[start : start + ROWS_PER_MESSAGE_MAX]
                self._peers.tell(to, Leads(some, is_whole and start == 0, number))

    # --- hearing -------------------------------------------------------------------------------------------------

    def heard(self, sender: BrokerId, leads: Leads) -> None:
        """Note that it has come; what it says is for `Leaders`."""
        if leads.is_whole or self._seen.get(sender, 0) + 1 == leads.number:
            self._seen[sender] = leads.number

    def pinged(self, sender: BrokerId, ping: Ping) -> None:
        if ping.leads_number == self._seen.get(sender, 0):
            self._pings_left.pop(sender, None)
            return
        left = self._pings_left.get(sender, 0)
        if left:
            self._pings_left[sender] = left - 1
            return
        self._pings_left[sender] = PINGS_PER_QUESTION
        self._peers.tell(sender, AskLeads())
