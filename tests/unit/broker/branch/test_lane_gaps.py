"""Where a joined lane has no records: found in its headers, and cut out of a line."""

from types import SimpleNamespace
from typing import Any
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from anabranch.broker.branch.lanes.gaps import gaps_in, region_of, without_gaps
from anabranch.log.log import Log
from anabranch.log.settings import LogConfig
from anabranch.modes.branch.lines import Branches, Span
from anabranch.modes.branch.rows import NOWHERE, Lane, Tip, first_offset, opened, sealed
from anabranch.record.builder import BatchBuilder
from anabranch.testing.fakes.disk import FakeDisk
from anabranch.values import Offset

LANE = Lane(0)


def log_of(*batches: tuple[int, int]) -> Log:
    """Batches from an offset to another."""
    disk = FakeDisk()
    disk.make_folder("lane")
    log = Log.open(disk, "lane", LogConfig(), clean=True)
    for start, end in batches:
        builder = BatchBuilder(Offset(start))
        for _ in range(start, end):
            builder.add(None, b"x", timestamp_ms=1)
        log.append([(builder.build(), Offset(start), Offset(end - 1), 1)], 1)
    return log


def span(start: int, end: int, lane: int = 0) -> Span:
    return Span(Lane(lane), Offset(start), Offset(end))


def test_gaps_are_what_lies_between_batches_and_at_both_ends() -> None:
    log = log_of((2, 5), (5, 6), (8, 10))
    assert gaps_in(log, span(0, 12)) == (span(0, 2), span(6, 8), span(10, 12))
    assert gaps_in(log, span(2, 6)) == ()


def test_a_first_lane_is_looked_through_if_it_has_lanes_of_before_in_it() -> None:
    key, first = (UUID(int=1), 0), Lane(5)
    end = Offset(first_offset(first) + 1)
    rows = [opened(key, NOWHERE, first, start=Offset(0)), sealed(key, Tip(first, end))]
    partition: Any = SimpleNamespace(branches=Branches(rows), view=SimpleNamespace(removed={}))
    assert region_of(partition, rows[0]) == Span(first, Offset(0), end)
    partition.view.removed[first] = Offset(40)
    assert region_of(partition, rows[0]) == Span(first, Offset(40), end)
    partition.view.removed[first] = first_offset(first)
    assert region_of(partition, rows[0]) is None, "what is left has no gaps"
    plain = opened(key, NOWHERE, LANE, start=Offset(0))
    assert region_of(partition, plain) is None


@given(
    st.lists(st.integers(0, 30), min_size=2, max_size=8, unique=True),
    st.sets(st.integers(0, 30), max_size=12),
)
def test_a_line_without_its_gaps_has_all_other_offsets(edges: list[int], missing: set[int]) -> None:
    edges = sorted(edges)
    line = tuple(span(*pair, lane=7) for pair in zip(edges[::2], edges[1::2], strict=False))
    gaps = [span(offset, offset + 1, lane=7) for offset in sorted(missing)]
    found = without_gaps(line, gaps)
    offsets = [offset for each in found for offset in range(each.start, each.end)]
    assert offsets == [
        offset for each in line for offset in range(each.start, each.end) if offset not in missing
    ]
    assert without_gaps(line, [gap._replace(lane=Lane(8)) for gap in gaps]) == line
