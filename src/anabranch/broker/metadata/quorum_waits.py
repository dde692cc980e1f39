"""QuorumWaits: who waits for the metadata quorum, and for what: commits, reads that must not be of the past, entries
that are to be applied. Everybody is told exactly once.
"""

import asyncio

from anabranch.errors import AnabranchError, NotControllerError, QuorumBusyError
from anabranch.values import Offset

Waiting = asyncio.Future[Offset]


class QuorumWaits:
    def __init__(self) -> None:
        self._commits: dict[int, tuple[int, Waiting]] = {}
        self._committed: list[tuple[Offset, Waiting]] = []
        self._reads: dict[Waiting, int] = {}
        self._applied: list[tuple[int, Waiting]] = []

    def commit(self, offset: int, term: int) -> Waiting:
        future = _future()
        self._commits[offset] = term, future
        return future

    def read(self, term: int) -> Waiting:
        future = _future()
        self._reads[future] = term
        return future

    async def applied(self, end: Offset, applied_end: int) -> None:
        if end > applied_end:
            future = _future()
            self._applied.append((end, future))
            await future

    # --- what happens

    def answer(self, future: object, end: int) -> None:
        """The core answers a read."""
        assert isinstance(future, asyncio.Future)
        self._reads.pop(future, None)
        _give(future, Offset(end))

    def applied_one(self, offset: int, term: int) -> None:
        waiting = self._commits.pop(offset, None)
        if waiting is not None and waiting[0] == term:
            self._committed.append((Offset(offset), waiting[1]))
        elif waiting is not None:
            _refuse(waiting[1], NotControllerError("Another leader's change took the place of this one."))
        if self._applied:
            self.applied_upto(offset + 1)

    def applied_upto(self, end: int) -> None:
        ready = [future for wanted, future in self._applied if wanted <= end]
        self._applied = [(wanted, future) for wanted, future in self._applied if wanted > end]
        for future in ready:
            _give(future, Offset(end))

    def tell_committed(self) -> None:
        committed, self._committed = self._committed, []
        for offset, future in committed:
            _give(future, offset)

    def check_reign(self, term: int | None) -> None:
        """Of that term we are the leader; None: of none. Those who counted on another learn it."""
        for offset, (of_term, future) in list(self._commits.items()):
            if of_term != term:
                del self._commits[offset]
                _refuse(
                    future, QuorumBusyError("The leader has changed: whether this was done is not known.")
                )
        for future, of_term in list(self._reads.items()):
            if of_term != term:
                del self._reads[future]
                _refuse(future, NotControllerError("This broker leads the metadata quorum no more."))

    def fail_all(self, error: AnabranchError) -> None:
        """What is applied stays so; for everything else there is no hope."""
        self.tell_committed()
        waiting = [future for _, future in self._commits.values()]
        waiting += [*self._reads, *(future for _, future in self._applied)]
        self._commits, self._reads, self._applied = {}, {}, []
        for future in waiting:
            _refuse(future, type(error)(str(error)))


def _future() -> Waiting:
    return asyncio.get_running_loop().create_future()


def _give(future: Waiting, value: Offset) -> None:
    if not future.done():
        future.set_result(value)


def _refuse(future: Waiting, error: AnabranchError) -> None:
    if not future.done():
        future.set_exception(error)
