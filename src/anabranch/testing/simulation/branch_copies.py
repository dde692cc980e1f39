"""What the brokers of a simulated cluster hold of topics in branch mode: whether they are one again, and equal.

In calm everybody has the same rows; of each partition one broker reigns, as many as were asked for have all of its
line, and everything is safe. Where two hold the same offsets of a lane, on whichever side it was written, they hold the
same bytes.
"""

from collections.abc import Callable, Mapping

from anabranch.broker.branch.partition import BranchPartition
from anabranch.log.log import Log
from anabranch.modes.branch.lines import Span
from anabranch.record.batch import batch_spans, read_header
from anabranch.testing.simulation.cluster_simulator import READ_BYTES, ClusterSimulator
from anabranch.testing.simulation.witness import Place
from anabranch.values import Offset, TopicPartition

Copies = dict[int, BranchPartition]


def branch_copies(sim: ClusterSimulator) -> dict[TopicPartition, Copies]:
    """Every partition, at every broker."""
    found: dict[TopicPartition, Copies] = {}
    for number, life in sim.lives.items():
        for partition in life.broker.branches.partitions() if life.broker.branches is not None else ():
            found.setdefault(partition.id, {})[number] = partition
    return found


# --- whether they are one -------------------------------------------------------------------------------------------


def missing_branches(sim: ClusterSimulator) -> str:
    """What keeps the branches from being one everywhere."""
    rows = {number: _rows(sim, number) for number, life in sim.lives.items() if life.broker.branches}
    if len(set(rows.values())) > 1:
        return f"some know more rows than others: { {number: len(each) for number, each in rows.items()} }"
    every = branch_copies(sim)
    return "; ".join(filter(None, (_missing_of(sim, name, copies) for name, copies in every.items())))


def _rows(sim: ClusterSimulator, number: int) -> frozenset[object]:
    branches = sim.broker(number).branches
    assert branches is not None
    return frozenset(branches.tube.rows_since(0))


def _missing_of(sim: ClusterSimulator, name: TopicPartition, copies: Copies) -> str:
    if len(copies) < len(sim.lives):
        return f"{name} is open at {list(copies)} only"
    reigning = [number for number, each in copies.items() if each.reign is not None]
    if len(reigning) != 1:
        return f"{reigning} reign over {name}"
    first = copies[reigning[0]]
    if first.high_watermark != first.log.end_offset:
        return f"{name} is safe up to {first.high_watermark} of {first.log.end_offset} only"
    apart = [number for number, each in copies.items() if not first.branches.is_behind(first.tip, each.tip)]
    if apart:
        return f"{apart} have what is not in the line of {name} at {reigning}"
    whole = [number for number, each in copies.items() if _is_whole(first, each)]
    wanted = min(len(sim.lives), _copies_asked(sim, name))
    if len(whole) < wanted:
        return f"{whole} hold all of {name}, and {wanted} should: {[each.tip for each in copies.values()]}"
    return ""


def _copies_asked(sim: ClusterSimulator, name: TopicPartition) -> int:
    table = next(iter(sim.lives.values())).broker.metadata.table
    return table.topics[name.topic].copies


def _is_whole(first: BranchPartition, copy: BranchPartition) -> bool:
    return copy.tip == first.tip and all(_holds(first, copy, span) for span in first.line)


def _holds(first: BranchPartition, copy: BranchPartition, span: Span) -> bool:
    start = max(span.start, first.view.removed.get(span.lane, span.start))
    if start >= span.end:
        return True
    held = copy.lanes.held(span.lane)
    return held is not None and held.start <= start and held.end >= span.end


# --- whether they are equal -----------------------------------------------------------------------------------------


def differing_copies(sim: ClusterSimulator, cuts: Mapping[str, int] | None = None) -> str:
    """Where two hold other bytes at the same offsets. `cuts`: below which somebody has asked to remove what there is of
    a topic; a copy that came back later may have a part of that."""
    for name, copies in branch_copies(sim).items():
        lanes = sorted({lane for copy in copies.values() for lane in copy.lanes})
        for lane in lanes:
            logs = {
                number: log for number, copy in copies.items() if (log := copy.lanes.get(lane)) is not None
            }
            removed = max(copy.view.removed.get(lane, Offset(0)) for copy in copies.values())
            cut = Offset((cuts or {}).get(name.topic, 0))
            start = max(cut, removed, *(log.start_offset for log in logs.values()))
            end = min(log.end_offset for log in logs.values())
            if len({_batches(log, start, end) for log in logs.values()}) > 1:
                return f"{list(logs)} hold other bytes in lane {lane} of {name}"
    return ""


def _batches(log: Log, start: Offset, end: Offset) -> tuple[bytes, ...]:
    found: list[bytes] = []
    while start < end:
        data = bytes(log.slice(start, READ_BYTES, end).read())
        if not data:
            break
        for first, last in batch_spans(data):
            header = read_header(data[first:last])
            if start <= header.base_offset and header.next_offset <= end:
                found.append(data[first:last])
        start = header.next_offset
    return tuple(found)


# --- where records come from ----------------------------------------------------------------------------------------


def origin_in(sim: ClusterSimulator, place: Place) -> Callable[[int], int]:
    """Where the record at an offset of the line was written first, by the rows."""
    copies = branch_copies(sim)[TopicPartition(*place)].values()
    partition = next(each for each in copies if each.reign is not None)
    moved = [part for span in partition.line for part in partition.branches.origins(span)]

    def origin(offset: int) -> int:
        for part in moved:
            if part.span.start <= offset < part.span.end:
                return part.start + offset - part.span.start
        return offset

    return origin
