"""SyncPlace: the rule that says whether a sync runs right here, on the loop's thread, or in a worker.

A worker keeps the loop free, but the way there and back costs two changes of thread, more than a fast disk needs for
the sync itself. A sync runs here if all of this holds:

- It is the only one: no other partition was written in this turn, and no worker is syncing. Several syncs side by
  side share what the disk does, one after the other they do not. Producers that do not wait (`acks=1`) keep workers
  syncing, so they are never held up.
- Somebody waits for it. What nobody waits for must not hold up those who come next.
- The loop has little else to do: since the last turn that wanted a sync, no socket began another turn, or such turns
  came at least `CALM_US_PER_TURN` apart.
- It is small: at most `SMALL_BYTES_MAX`, in one file. While a large one runs, the loop had better take in the next.
- The disk is proven fast: the last `_proof_needed` small syncs, wherever they ran, took at most `FAST_US_MAX` each.
  A slow one begins the count anew. If it was the loop that it held up, twice as many are asked for the next time, up
  to `PROOF_MAX`; as many fast ones here halve that again.

So the loop is held up where nearly everybody it serves waits for that very sync; anybody else waits for one fast sync
at most, and is served before the next. A disk that is slow, or slow now and then, soon has the loop no more.
Decides only, for the `Syncer`; `docs/decisions/0013-where-a-sync-runs.md` has the figures.
"""

FAST_US_MAX = 500
"""About twice what the way to a worker and back costs: beyond that, it is no longer the larger part."""
SMALL_BYTES_MAX = 16 * 1024
CALM_US_PER_TURN = 2000
PROOF_MIN = 16
PROOF_MAX = 4096


class SyncPlace:
    def __init__(self) -> None:
        self._fast_in_a_row = 0
        self._proof_needed = PROOF_MIN
        self._here_in_a_row = 0
        self.turns = 0
        """Counted by the core: turns that a socket began."""
        self._turns_before = 0
        self._wanted_us = 0

    def is_loop_calm(self, now_us: int) -> bool:
        """To be asked once in each turn that wants a sync."""
        others = self.turns - self._turns_before - 1
        since_us = now_us - self._wanted_us
        self._turns_before, self._wanted_us = self.turns, now_us
        return since_us >= others * CALM_US_PER_TURN

    @property
    def is_disk_fast(self) -> bool:
        return self._fast_in_a_row >= self._proof_needed

    def note(self, took_us: int, *, here: bool) -> None:
        """A small sync has taken this long."""
        if took_us <= FAST_US_MAX:
            self._fast_in_a_row += 1
            if here:
                self._note_fast_here()
            return
        self._fast_in_a_row = 0
        if here:
            self._here_in_a_row = 0
            self._proof_needed = min(2 * self._proof_needed, PROOF_MAX)

    def _note_fast_here(self) -> None:
        self._here_in_a_row += 1
        if self._here_in_a_row >= self._proof_needed > PROOF_MIN:
            self._here_in_a_row = 0
            self._proof_needed //= 2
