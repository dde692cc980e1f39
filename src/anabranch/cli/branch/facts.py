"""What the brokers of a cluster say of the branches of a topic: asked of each of them, since two sides of a split know
different things, and put together for people.

The rows of all together make one history. Which line counts as the served one is what the broker says that writes it;
of several, on both sides of a split, the one that the first broker which answered belongs to.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from anabranch.cli.client import Broker
from anabranch.cli.common import Failure
from anabranch.errors import ClusterAnswerError
from anabranch.local_cluster.cluster_client import ClusterClient, refusal
from anabranch.modes.branch.history import lane_ends, open_tips, present_line
from anabranch.modes.branch.lines import Branches, Line, Span, UnknownBranchError
from anabranch.modes.branch.rows import (
    FIRST_LANE,
    BranchRow,
    Lane,
    RowKind,
    Source,
    Tip,
    slot_of,
)
from anabranch.values import Offset, is_other_lane
from anabranch.wire.api_keys import ApiKey

if TYPE_CHECKING:
    Body = dict[str, Any]

NOBODY = -1


@dataclass
class Side:
    """Brokers that take the same one for the primary of a partition."""

    primary: int
    brokers: list[int] = field(default_factory=list)
    lane: Lane | None = None
    """The branch that it writes; None: it is not asked, or writes nothing."""
    high_watermark: int = 0
    line: Line = ()
    copies: list[int] = field(default_factory=list)


@dataclass
class PartitionFacts:
    """One partition, as all brokers that answered know it together."""

    topic: str
    partition: int
    branches: Branches
    rows: list[BranchRow]
    ends: dict[Lane, Offset]
    """How far each lane is known to reach."""
    holders: dict[Lane, list[int]]
    sides: list[Side]
    """The one of the broker that was asked first comes first."""
    brokers_of_slots: dict[int, int]
    first_leader: int

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def line(self) -> Line:
        """What is served, on the first side."""
        return self.sides[0].line if self.sides else ()

    def open_tips(self) -> list[Tip]:
        return open_tips(self.branches, self.ends)

    def line_of(self, lane: Lane) -> Line:
        """All that is left of a branch with what it goes on from. Where a row is missing, of the branch alone."""
        end = self.ends[lane]
        try:
            line = self.branches.line(Tip(lane, end))
        except UnknownBranchError:
            return (Span(lane, self.branches.opened[lane].new_start, end),)
        left = present_line(self.branches, line, end)
        present = tuple(run for span in left for run in self._runs_in(span))
        return (*self._stored_below(min(line[0].end, present[0].start if present else end)), *present)

    def _runs_in(self, span: Span) -> Line:
        """What the topic had before it went into branches may have gaps, if it was in branches already: where, is told
        with the line that is served."""
        if not is_other_lane(span.start, span.end - 1):
            return (span,)
        told = [each for each in self.line if each.lane == span.lane and each.start < span.end]
        return tuple(each._replace(end=min(each.end, span.end)) for each in told) or (span,)

    def _stored_below(self, end: int) -> Line:
        """What lies in the object store is below every branch: it is told of with the line that is served."""
        return tuple(span for span in self.line if span.end <= end)

    def broker_of(self, lane: Lane) -> int | None:
        """Who wrote it."""
        if lane == FIRST_LANE:
            return None if self.first_leader == NOBODY else self.first_leader
        return self.brokers_of_slots.get(slot_of(lane))

    def writer_of(self, lane: Lane) -> int | None:
        return next((side.primary for side in self.sides if side.lane == lane), None)


class Silence(NamedTuple):
    """A broker that others have not heard lately; `ms`: for how long, -1 if nobody knows."""

    broker: int
    by: list[int]
    ms: int


@dataclass
class BranchFacts:
    partitions: list[PartitionFacts]
    silent: dict[str, str]
    """Whom nobody could ask, and why."""
    silences: list[Silence]


def read_facts(broker: Broker, topic: str | None, partition: int | None = None) -> BranchFacts:
    """Of one topic, or of all in mode branch. Raises Failure, in words for people."""
    broker.require_answer()
    body = {"topics": None if topic is None else [{"name": topic, "partitions": None}]}
    answers: dict[int, Body] = {}
    silent: dict[str, str] = {}
    # Each side of a split knows only its own brokers, so every address that was given is asked by itself.
    for address in dict.fromkeys(part.strip() for part in broker.bootstrap.split(",")):
        with ClusterClient(address, broker.seconds_max) as client:
            _ask_all(client, address, body, answers, silent)
    if not answers:
        raise Failure(" ".join(silent.values()) or f"No broker answers at {broker.bootstrap}.")
    if topic is not None:
        _check(answers.values(), topic)
    return BranchFacts(put_together(answers, partition), silent, silences_of(answers))


def _ask_all(
    client: ClusterClient, address: str, body: "Body", answers: "dict[int, Body]", silent: dict[str, str]
) -> None:
    """Whoever answers there, and all brokers that it knows."""
    try:
        known = [row["node_id"] for row in client.metadata([])["brokers"]]
    except ClusterAnswerError as error:
        silent[address] = str(error)
        return
    for broker_id in known:
        if broker_id in answers or f"broker {broker_id}" in silent:
            continue
        try:
            answers[broker_id] = client.ask(ApiKey.DESCRIBE_BRANCHES, body, broker_id)
        except ClusterAnswerError as error:
            silent[f"broker {broker_id}"] = str(error)


def _check(answers: "Iterable[Body]", topic: str) -> None:
    """Some broker knows it."""
    said = [row for answer in answers for row in answer["topics"]]
    if all(row["error_code"] for row in said):
        raise Failure(f"{refusal(said[0]['error_code'], said[0]['error_message'])}.")


def silences_of(answers: "dict[int, Body]") -> list[Silence]:
    """Two that do not hear each other are named once, with whoever has lost most of the others."""
    lost: dict[int, dict[int, int]] = {}
    for broker_id, answer in answers.items():
        for row in answer["brokers"]:
            if not row["is_in_view"]:
                lost.setdefault(row["broker_id"], {})[broker_id] = row["silent_ms"]
    found: list[Silence] = []
    told: set[tuple[int, int]] = set()
    for broker, by in sorted(lost.items(), key=lambda each: (-len(each[1]), each[0])):
        rest = {other: ms for other, ms in by.items() if (other, broker) not in told}
        told.update((broker, other) for other in rest)
        if rest:
            found.append(Silence(broker, sorted(rest), max(rest.values())))
    return found


def put_together(answers: "dict[int, Body]", only: int | None = None) -> list[PartitionFacts]:
    said: dict[tuple[str, int], list[tuple[int, UUID, Body]]] = {}
    slots: dict[int, int] = {}
    for broker_id, answer in answers.items():
        slots.update({row["slot"]: row["broker_id"] for row in answer["brokers"]})
        for topic in answer["topics"]:
            for row in topic["partitions"]:
                if row["error_code"] == 0 and only in (None, row["partition_index"]):
                    key = topic["name"], row["partition_index"]
                    said.setdefault(key, []).append((broker_id, topic["topic_id"], row))
    return [_partition(*key, rows, slots) for key, rows in sorted(said.items())]


def _partition(
    topic: str, partition: int, said: "list[tuple[int, UUID, Body]]", slots: dict[int, int]
) -> PartitionFacts:
    rows = list(
        dict.fromkeys(
            row_of(topic_id, partition, row) for _, topic_id, answer in said for row in answer["rows"]
        )
    )
    branches = Branches(rows)
    held: dict[Lane, Offset] = {}
    holders: dict[Lane, list[int]] = {}
    for broker_id, _, answer in said:
        for span in answer["held"]:
            lane = Lane(span["lane"])
            held[lane] = max(held.get(lane, Offset(0)), Offset(span["end_offset"]))
            holders.setdefault(lane, []).append(broker_id)
    first = max((answer["first_leader_id"] for _, _, answer in said), default=NOBODY)
    answers = [(broker_id, answer) for broker_id, _, answer in said]
    ends = lane_ends(branches, held)
    return PartitionFacts(topic, partition, branches, rows, ends, holders, _sides(answers), slots, first)


def _sides(said: "list[tuple[int, Body]]") -> list[Side]:
    sides: dict[int, Side] = {}
    for broker_id, answer in said:
        side = sides.setdefault(answer["leader_id"], Side(answer["leader_id"]))
        side.brokers.append(broker_id)
        if not side.line or broker_id == side.primary:
            side.line = tuple(_span(span) for span in answer["line"])
            side.high_watermark = answer["high_watermark"]
            side.copies = answer["copies_in_view"]
        if answer["reign_lane"] != NOBODY and broker_id == side.primary:
            side.lane = Lane(answer["reign_lane"])
    return list(sides.values())


def _span(span: "Body") -> Span:
    return Span(Lane(span["lane"]), Offset(span["start_offset"]), Offset(span["end_offset"]))


def row_of(topic_id: UUID, partition: int, row: "Body") -> BranchRow:
    sources = tuple(
        Source(
            Lane(each["lane"]),
            Offset(each["start_offset"]),
            Offset(each["end_offset"]),
            Offset(each["new_start"]),
        )
        for each in row["sources"]
    )
    inputs = tuple(Tip(Lane(each["lane"]), Offset(each["end_offset"])) for each in row["inputs"])
    return BranchRow(
        topic_id,
        partition,
        RowKind(row["kind"]),
        Lane(row["old_lane"]),
        Lane(row["new_lane"]),
        Offset(row["old_end"]),
        Offset(row["new_start"]),
        sources,
        inputs,
        row["time_ms"],
    )
