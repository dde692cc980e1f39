"""Slices of what has arrived: who parses them when, counted in turns of the loop."""

import asyncio
from typing import cast

from anabranch.broker.requests.turns import PORTION, ROWS_PER_TURN, Turns
from anabranch.gateway.http.slices import SlicedParser


class Connection(SlicedParser):
    """Parses one letter at a time."""

    def __init__(self, name: str, turns: Turns, parsed: list[str], slice_rows: int = PORTION) -> None:
        self.parsing_turns = turns
        self.transport = cast(asyncio.Transport, self)
        self.arrived = ""
        self.is_reading = True
        self.is_aborted = False
        self._name = name
        self._parsed = parsed
        self._slice_rows = slice_rows

    def receive(self, letters: str) -> None:
        self.arrived += letters
        self.parse_slices()

    def has_slice(self) -> bool:
        return self.arrived != ""

    def parse_slice(self) -> int:
        letter, self.arrived = self.arrived[0], self.arrived[1:]
        if letter == "!":
            raise ValueError(letter)
        self._parsed.append(self._name + letter)
        return self._slice_rows

    def after_parsing(self) -> None:
        pass

    def hold_reading(self) -> None:
        self.is_reading = False

    def let_reading_go(self) -> None:
        self.is_reading = True

    def abort(self) -> None:
        self.is_aborted = True


async def all_parsed(*connections: Connection) -> None:
    tasks = [each._parsing for each in connections if each._parsing is not None]
    await asyncio.gather(*tasks, return_exceptions=True)


def test_quiet_connection_parses_at_once_and_without_a_task() -> None:
    async def main() -> None:
        parsed: list[str] = []
        quiet = Connection("q", Turns(), parsed)
        quiet.receive("ab")
        assert parsed == ["qa", "qb"]
        assert not quiet.is_parsing_later
        assert quiet.is_reading

    asyncio.run(main())


def test_slices_beyond_the_turn_wait_in_order_and_reading_with_them() -> None:
    async def main() -> None:
        parsed: list[str] = []
        turns = Turns()
        flood, other = (Connection(name, turns, parsed) for name in "fo")
        in_a_turn = ROWS_PER_TURN // PORTION
        flood.receive("abcdefghijklmnopqrstuvwxyz")
        other.receive("ab")
        assert len(parsed) == in_a_turn
        assert not flood.is_reading
        assert not other.is_reading
        flood.receive("0")  # Was on its way already.
        await all_parsed(flood, other)
        assert "".join(each[1] for each in parsed if each[0] == "f") == "abcdefghijklmnopqrstuvwxyz0"
        assert parsed.index("ob") < parsed.index("fz"), "they alternate"
        assert flood.is_reading
        assert other.is_reading

    asyncio.run(main())


def test_bytes_that_cost_no_rows_wait_once() -> None:
    async def main() -> None:
        parsed: list[str] = []
        turns = Turns()
        turns.spend(ROWS_PER_TURN)
        upload = Connection("u", turns, parsed, slice_rows=0)
        upload.receive("abcdefgh")
        assert parsed == []
        await all_parsed(upload)
        assert len(parsed) == 8
        assert turns.rows_max <= ROWS_PER_TURN

    asyncio.run(main())


def test_connection_that_is_lost_parses_nothing_more() -> None:
    async def main() -> None:
        parsed: list[str] = []
        turns = Turns()
        turns.spend(ROWS_PER_TURN)
        lost = Connection("l", turns, parsed)
        lost.receive("a")
        lost.stop_parsing()
        await all_parsed(lost)
        assert parsed == []
        assert not lost.is_reading

    asyncio.run(main())


def test_defect_in_a_later_turn_closes_the_connection() -> None:
    async def main() -> None:
        turns = Turns()
        turns.spend(ROWS_PER_TURN)
        broken = Connection("b", turns, [])
        broken.receive("!")
        await all_parsed(broken)
        assert broken.is_aborted

    asyncio.run(main())
