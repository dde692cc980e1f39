"""A clock that stands still until it is told to go on."""


class FakeClock:
    """Both clocks of `anabranch.clock.Clock`, moved by hand."""

    def __init__(self, wall_ms: int = 1_700_000_000_000, monotonic_ms: int = 0) -> None:
        self._wall_ms = wall_ms
        self._monotonic_ms = monotonic_ms

    def wall_ms(self) -> int:
        return self._wall_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def monotonic_us(self) -> int:
        return self._monotonic_ms * 1000

    def advance(self, milliseconds: int) -> None:
        """Let time pass on both clocks."""
        assert milliseconds >= 0, "only the time of day may jump back: use jump_wall"
        self._wall_ms += milliseconds
        self._monotonic_ms += milliseconds

    def jump_wall(self, milliseconds: int) -> None:
        """Set the time of day forward or back, as an operator or a time server does."""
        self._wall_ms += milliseconds
