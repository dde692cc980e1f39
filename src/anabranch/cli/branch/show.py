"""How `anabranch branch show` prints what is known of a partition's branches: a tree for people, or JSON."""

from typing import Any

import click

from anabranch.cli.branch.facts import PartitionFacts, Side
from anabranch.cli.branch.tree import (
    Stretch,
    Tree,
    drawn,
    is_served,
    moment,
    opened_ms,
    records_of,
    sealed_ms,
    state_of,
)
from anabranch.cli.terminal import echo_styled, styled
from anabranch.modes.branch.history import records_between
from anabranch.modes.branch.lines import Span

BRANCH_COLUMN, COUNT_COLUMN = 0, 4
STATE_COLOURS = {"written": "green", "open": "red"}


def print_tree(facts: PartitionFacts, rows_max: int | None) -> None:
    click.echo(_headline(facts))
    rows = list(drawn(facts))
    shown = rows[:rows_max]
    cells = [None if row.stretch is None else _cells(facts, row.stretch) for row in shown]
    widths = [max((len(each[at]) for each in cells if each), default=0) for at in range(6)]
    indent = max((len(row.drawing) for row in shown), default=0)
    for row, each in zip(shown, cells, strict=True):
        text = row.note if each is None else _aligned(each, widths)
        if each is None and text:
            text = " " * (widths[0] + 2) + text
        echo_styled(f"{row.drawing:{indent}}  {text}".rstrip())
    if len(rows) > len(shown):
        click.echo(f"... and {len(rows) - len(shown)} older rows: --all shows them.")


def _headline(facts: PartitionFacts) -> str:
    tips = facts.open_tips()
    sides = [side for side in facts.sides if side.primary >= 0]
    text = f"{facts.name}: "
    if len(tips) > 1 or len(sides) > 1:
        text += f"{len(tips)} branches that nothing has joined"
        return "\n".join([text, *(f"  {_sentence(side)}, as {_brokers(side)} it" for side in sides)])
    text += f"one line of {records_between(facts.line, 0, 2**63)} records; "
    return text + (_sentence(sides[0]) if sides else "nobody writes it now")


def _sentence(side: Side) -> str:
    branch = "" if side.lane is None else f" branch {side.lane}"
    return f"broker {side.primary} writes{branch} up to offset {side.high_watermark}"


def _brokers(side: Side) -> str:
    names = [str(each) for each in side.brokers]
    if len(names) == 1:
        return f"broker {names[0]} sees"
    return f"brokers {', '.join(names[:-1])} and {names[-1]} see"


def _cells(facts: PartitionFacts, stretch: Stretch) -> tuple[str, ...]:
    broker = facts.broker_of(stretch.lane)
    count = records_of(facts, stretch)
    return (
        str(stretch.lane),
        "" if broker is None else f"broker {broker}",
        moment(opened_ms(facts, stretch.lane)) if stretch.is_first else "",
        state_of(facts, stretch),
        f"{count} record{'' if count == 1 else 's'}",
        f"{stretch.start} to {stretch.end}",
    )


def _aligned(cells: tuple[str, ...], widths: list[int]) -> str:
    """Numbers to the right; on a terminal in git's colours."""
    return "  ".join(
        _coloured(at, cell, cell.rjust(width) if at == COUNT_COLUMN else cell.ljust(width))
        for at, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )


def _coloured(at: int, cell: str, text: str) -> str:
    colour = "yellow" if at == BRANCH_COLUMN else STATE_COLOURS.get(cell)
    return text if colour is None else styled(text, colour)


def facts_as_json(facts: PartitionFacts) -> dict[str, Any]:
    return {
        "topic": facts.topic,
        "partition": facts.partition,
        "sides": [
            {
                "primary": side.primary,
                "brokers": side.brokers,
                "branch": side.lane,
                "high_watermark": str(side.high_watermark),
                "line": [_span(span) for span in side.line],
                "copies": side.copies,
            }
            for side in facts.sides
        ],
        "open": [{"branch": lane, "end": str(end)} for lane, end in facts.open_tips()],
        "branches": [
            {
                "branch": lane,
                "broker": facts.broker_of(lane),
                "from": None if row.old < 0 else row.old,
                "from_end": str(row.old_end),
                "start": str(row.new_start),
                "end": str(facts.ends[lane]),
                "opened_ms": row.time_ms,
                "sealed_ms": sealed_ms(facts, lane) or None,
                "written_by": facts.writer_of(lane),
                "held_by": sorted(facts.holders.get(lane, ())),
                "joins": [{"branch": tip.lane, "end": str(tip.end)} for tip in row.inputs],
                "records_again": sum(source.end - source.start for source in row.sources),
            }
            for lane, row in sorted(facts.branches.opened.items(), reverse=True)
        ],
        "stretches": [
            {
                "branch": each.lane,
                "start": str(each.start),
                "end": str(each.end),
                "records": records_of(facts, each),
                "in_line": is_served(facts, each),
                "after": [{"branch": parent.lane, "end": str(parent.end)} for parent in parents],
            }
            for each, parents in Tree(facts).parents.items()
        ],
    }


def _span(span: Span) -> dict[str, Any]:
    return {"branch": span.lane, "start": str(span.start), "end": str(span.end)}
