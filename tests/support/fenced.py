"""Memory whose neighbours may not be touched: a read beyond either end of it ends the process."""

import ctypes
import mmap
from collections.abc import Iterator


class Fenced:
    """One page between two that are closed."""

    PAGE = mmap.PAGESIZE

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, 3 * self.PAGE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        for fence in (address, address + 2 * self.PAGE):
            assert protect(fence, self.PAGE, 0) == 0, ctypes.get_errno()
        self._page = memoryview(self._map)[self.PAGE : 2 * self.PAGE]

    def at_both_ends(self, data: bytes) -> Iterator[memoryview]:
        for place in (slice(0, len(data)), slice(self.PAGE - len(data), self.PAGE)):
            self._page[place] = data
            yield self._page[place]
