"""What the modes that a topic went through have left behind: where its records were written first, and files that
nobody needs any more."""

from collections.abc import Callable, Collection

from anabranch.cluster.metadata.residence import BRANCHED, STORED
from anabranch.modes.branch.lines import Branches, Moved, Span
from anabranch.modes.branch.rows import Lane, RowKind, first_offset, lane_limit, lane_of
from anabranch.testing.simulation.cluster_simulator import ClusterSimulator, Life
from anabranch.testing.simulation.witness import Place

OF_LANES = ("lane-", "branch", "closing", "joining")
"""How the names of files begin that only a partition in branches has, or one that goes there or comes from there."""


def origin_over_modes(sim: ClusterSimulator, place: Place) -> Callable[[int], int]:
    """Where the record at an offset was written first, by the rows of all branches that there ever were."""
    branches = _all_branches(sim, place)
    parts: dict[Lane, list[Moved]] = {}

    def origin(offset: int) -> int:
        lane = lane_of(offset)
        if lane not in parts:
            parts[lane] = branches.origins(Span(lane, first_offset(lane), lane_limit(lane)))
        for part in parts[lane]:
            if part.span.start <= offset < part.span.end:
                first = part.start + offset - part.span.start
                return first if first == offset else origin(first)
        return offset

    return origin


def _all_branches(sim: ClusterSimulator, place: Place) -> Branches:
    branches = Branches()
    for life in sim.lives.values():
        broker = life.broker
        topic = broker.metadata.table.topics[place[0]]
        for row in broker.branches.tube.rows if broker.branches is not None else ():
            if row.key == (topic.topic_id, place[1]) and row.kind is RowKind.OPENED:
                branches.add(row)
    return branches


def left_in_folders(sim: ClusterSimulator, topics: Collection[str]) -> list[str]:
    """Folders of partitions at brokers that do not keep them, and files of another form than they have."""
    return [f"{number}: {name}" for number, life in sim.lives.items() for name in _left(life, topics)]


def _left(life: Life, topics: Collection[str]) -> list[str]:
    broker, table = life.broker, life.broker.metadata.table
    found: list[str] = []
    for folder in broker.files.list(broker.data_dir):
        name, _, index = folder.rpartition("-")
        if name not in topics:
            continue
        topic = table.topics[name]
        form, placement = topic.form(int(index)), table.placement(topic, int(index))
        files = broker.files.list(f"{broker.data_dir}/{folder}")
        if form == STORED:
            found.append(folder)
        elif form == BRANCHED:
            continue  # What a start left that did not know of the change yet goes with the next one.
        elif not placement.is_kept_by(life.machine.broker_id):  # type: ignore[arg-type]
            found.append(folder)
        else:
            found += [f"{folder}/{each}" for each in files if each.startswith(OF_LANES)]
    return found
