"""What every client must be able to do, written once against a small view of a consumer.

A test file wraps its client's consumer in a `Member`; the scenario then drives several of them in one thread
by polling each in turn, so a rebalance makes progress on all sides and nothing ever waits for a fixed time.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from typing import NamedTuple, Protocol

from support.waiting import wait_until

PARTITIONS = 4


class Seen(NamedTuple):
    partition: int
    offset: int
    value: bytes


class Member(Protocol):
    def poll(self) -> list[Seen]: ...  # waits briefly, at most 0.2 s
    def partitions(self) -> set[int]: ...
    def commit(self) -> None: ...  # what poll() returned so far, and waits for the answer
    def close(self) -> None: ...


Join = Callable[[], Member]
Produce = Callable[[dict[int, list[bytes]]], None]  # partition -> values, acknowledged on return


def values_for(round_name: str, count: int = 5) -> dict[int, list[bytes]]:
    return {p: [f"{round_name}-{p}-{n}".encode() for n in range(count)] for p in range(PARTITIONS)}


def wait_for_shares(members: Sequence[Member], sizes: Iterable[int], seen: list[Seen] | None = None) -> None:
    """Polls until the members own all partitions, each one exactly once, in shares of these sizes."""
    wanted = sorted(sizes)

    def shared() -> bool:
        for member in members:
            records = member.poll()
            if seen is not None:
                seen.extend(records)
        owned = [member.partitions() for member in members]
        once = Counter(partition for share in owned for partition in share)
        return sorted(map(len, owned)) == wanted and once == Counter(range(PARTITIONS))

    wait_until(shared, f"shares of {wanted} partitions")


def read_exactly(members: Sequence[Member], wanted: dict[int, list[bytes]]) -> None:
    """Polls until everything wanted has arrived; order per partition must hold, and nothing else may come."""
    seen: dict[int, list[bytes]] = {partition: [] for partition in wanted}
    count = sum(map(len, wanted.values()))

    def arrived() -> bool:
        for member in members:
            for record in member.poll():
                seen[record.partition].append(record.value)
        return sum(map(len, seen.values())) >= count

    wait_until(arrived, f"{count} records")
    assert seen == wanted


def group_shares_rebalances_commits_and_resumes(join: Join, produce: Produce) -> None:
    """Two members share a topic, one leaves, the other takes over, and a later one resumes."""
    with closing(join()) as first:
        with closing(join()) as second:
            wait_for_shares([first, second], [2, 2])
            produce(values_for("shared"))
            read_exactly([first, second], values_for("shared"))
            first.commit()
            second.commit()
        wait_for_shares([first], [PARTITIONS])
        produce(values_for("alone"))
        read_exactly([first], values_for("alone"))
        first.commit()
    produce(values_for("while nobody listened"))
    with closing(join()) as third:
        read_exactly([third], values_for("while nobody listened"))


def two_members_share_everything(join: Join, produce: Produce) -> None:
    """The short form, once per assignor: a second member takes its half, nothing is read twice."""
    with closing(join()) as first:
        wait_for_shares([first], [PARTITIONS])
        with closing(join()) as second:
            wait_for_shares([first, second], [2, 2])
            produce(values_for("both"))
            read_exactly([first, second], values_for("both"))


def static_member_returns_to_its_share(
    join: Callable[[str], Member], leave: Callable[[Member], None]
) -> None:
    """A static member that goes and comes back under its name gets the same partitions again."""
    with closing(join("stays")) as stays:
        goes = join("goes")
        try:
            wait_for_shares([stays, goes], [2, 2])
            share = goes.partitions()
        finally:
            leave(goes)
        with closing(join("goes")) as back:
            wait_for_shares([stays, back], [2, 2])
            assert back.partitions() == share
