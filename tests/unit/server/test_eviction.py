"""Which connections are closed when memory for requests is short, of connections that only say what they hold."""

from dataclasses import dataclass
from typing import Any, cast

from anabranch.broker.requests.memory_budget import MemoryBudget
from anabranch.server.eviction import SENDING_MS_MAX, Eviction

MIB = 2**20


@dataclass(eq=False)
class Sender:
    """A connection whose frame arrives so slowly that it would take for ever."""

    memory: MemoryBudget
    network: str
    memory_held: int
    is_in_line: bool = False
    is_closed: bool = False
    free_bytes_held: int = 0

    def __post_init__(self) -> None:
        self.host = self.network
        self.memory_claimed = self.memory_held
        assert self.memory.take(self.memory_held)

    def blocked_ms(self, now_ms: int) -> int:
        return 0

    def sending_ms(self, now_ms: int) -> int:
        return now_ms

    def frame_ms_expected(self, now_ms: int) -> int:
        return 100 * now_ms

    def close(self, reason: str) -> None:
        assert not self.is_closed
        self.is_closed = True
        self.memory.give(self.memory_held)


def test_slow_frame_of_an_address_that_claims_little_holds_up_others_for_a_minute_at_most() -> None:
    memory = MemoryBudget(66 * MIB)
    slow = Sender(memory, "192.0.2.66", 10 * MIB)
    others = [Sender(memory, f"192.0.2.{number}", 10 * MIB) for number in range(1, 5)]
    waiting = Sender(memory, "192.0.2.9", 0, is_in_line=True)
    waiting.memory_claimed = 20 * MIB
    granted: list[bool] = []
    memory.wait(waiting.memory_claimed, lambda: granted.append(True), waiting.network)
    eviction = Eviction(cast(Any, {slow, *others, waiting}), memory)
    eviction.sweep(SENDING_MS_MAX)
    assert not any(each.is_closed for each in (slow, *others)), "each claims less than an even share"
    eviction.sweep(SENDING_MS_MAX + 1)
    assert granted == [True]
    assert sum(each.is_closed for each in (slow, *others)) == 1, "no more than it takes"
