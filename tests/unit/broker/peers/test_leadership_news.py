"""News of who leads what arrive in the end, whichever message is lost on the way."""

from collections.abc import Callable
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from anabranch.broker.peers.leadership_news import PINGS_PER_QUESTION, LeadershipNews
from anabranch.broker.peers.messages import AskLeads, LeaderRow, Leads, PeerMessage, Ping
from anabranch.values import BrokerId, Generation

A, B = BrokerId(1), BrokerId(2)


class Heard:
    """In the place of Leaders: whom a broker takes for the leader."""

    def __init__(self) -> None:
        self.rows: dict[tuple[UUID, int], LeaderRow] = {}

    def heard(self, sender: BrokerId, leads: Leads) -> None:
        if leads.is_whole:
            self.rows.clear()
        for row in leads.rows:
            if row.in_sync:
                self.rows[row.topic_id, row.partition] = row
            else:
                self.rows.pop((row.topic_id, row.partition), None)


class Pair:
    """Broker A leads partitions and tells broker B of them."""

    def __init__(self) -> None:
        self.led: dict[int, LeaderRow] = {}
        self.heard = Heard()
        self.is_deaf = False
        self.questions = 0
        self.a = self._news(self._to_b)
        self.b = self._news(self._to_a)

    def _news(self, tell: Callable[[BrokerId, PeerMessage], None]) -> LeadershipNews:
        class Peers:
            pass

        peers = Peers()
        peers.tell = tell  # type: ignore[attr-defined]
        return LeadershipNews(peers, lambda: list(self.led.values()))  # type: ignore[arg-type]

    def _to_b(self, to: BrokerId, message: PeerMessage) -> None:
        if self.is_deaf:
            return
        if isinstance(message, Leads):
            self.b.heard(A, message)
            self.heard.heard(A, message)
        elif isinstance(message, Ping):
            self.b.pinged(A, message)

    def _to_a(self, to: BrokerId, message: PeerMessage) -> None:
        assert isinstance(message, AskLeads)
        self.questions += 1
        self.a.tell_all(B)

    def lead(self, partition: int, *, leads: bool = True) -> None:
        row = LeaderRow(UUID(int=1), partition, 0, Generation(1), (A,) if leads else ())
        if leads:
            self.led[partition] = row
        else:
            self.led.pop(partition, None)
        self.a.tell(B, [row])

    @property
    def is_known(self) -> bool:
        return sorted(row.partition for row in self.heard.rows.values()) == sorted(self.led)


def test_what_is_told_to_a_broker_that_is_still_starting_is_told_again() -> None:
    pair = Pair()
    pair.is_deaf = True
    pair.lead(0)
    pair.a.tell_all(B)
    pair.is_deaf = False
    assert not pair.is_known
    pair.a.ping(B)
    assert pair.is_known


def test_nobody_asks_while_nothing_is_lost() -> None:
    pair = Pair()
    pair.a.tell_all(B)
    for partition in range(5):
        pair.lead(partition)
        pair.a.ping(B)
    assert (pair.questions, pair.is_known) == (0, True)


def test_a_question_is_not_repeated_with_every_ping() -> None:
    pair = Pair()
    for _ in range(PINGS_PER_QUESTION + 1):
        pair.b.pinged(A, Ping(1000))
    assert pair.questions == 1
    pair.b.pinged(A, Ping(1000))
    assert pair.questions == 2


def test_a_list_of_many_partitions_is_one_answer() -> None:
    pair = Pair()
    pair.is_deaf = True
    for partition in range(2500):
        pair.lead(partition)
    pair.is_deaf = False
    pair.a.ping(B)
    assert pair.is_known
    pair.a.ping(B)
    assert pair.questions == 1


@given(
    st.lists(
        st.tuples(st.sampled_from(["lead", "resign", "whole", "ping"]), st.integers(0, 3), st.booleans())
    )
)
def test_after_losses_in_any_order_a_few_pings_are_enough(happenings: list[tuple[str, int, bool]]) -> None:
    pair = Pair()
    for what, partition, pair.is_deaf in happenings:
        match what:
            case "lead" | "resign":
                pair.lead(partition, leads=what == "lead")
            case "whole":
                pair.a.tell_all(B)
            case _:
                pair.a.ping(B)
    pair.is_deaf = False
    for _ in range(PINGS_PER_QUESTION + 2):
        pair.a.ping(B)
    assert pair.is_known
