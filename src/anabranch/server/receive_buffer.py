"""ReceiveBuffer: the bytes of one connection between `recv` and the end of their frame.

Frames are parsed where they lie; a view handed to the broker stays valid until the next `room()`, because only
that moves bytes. Resizing makes a new buffer and leaves the old one to whoever still looks at it. It starts small,
since most connections say little, and grows as bytes arrive, never on the word of a length alone.
"""

SMALL_BYTES = 4 * 1024
SEVERAL_BYTES_MAX = 64 * 1024
"""Up to here there is room for the frames behind the first: who sends one of 16 KB soon sends the next."""
GROWTH, GROWTH_OF_LARGE = 4, 2
"""How many times what has arrived a buffer may hold. A frame's announced length costs nothing, and a frame of a
megabyte is copied four times on its way, once in the life of a busy connection."""
LARGE_BYTES = 1024 * 1024
"""From here on a buffer grows more slowly: much of what it may hold would be kept from others."""


class ReceiveBuffer:
    __slots__ = ("end", "start", "view")

    def __init__(self) -> None:
        self.view = memoryview(b"")
        self.start = 0
        self.end = 0

    def __len__(self) -> int:
        return self.end - self.start

    @property
    def capacity(self) -> int:
        return len(self.view)

    @property
    def is_full(self) -> bool:
        return self.start == 0 and self.end == len(self.view)

    def room(self) -> memoryview:
        """Where the next bytes go; what was parsed before is overwritten."""
        if self.start:
            if self.start != self.end:
                self.view[: self.end - self.start] = self.view[self.start : self.end]
            self.end -= self.start
            self.start = 0
        return self.view[self.end :]

    def capacity_for(self, frame_bytes: int) -> int:
        """How large the buffer should become for a frame of that size, given what has arrived."""
        if frame_bytes <= SMALL_BYTES:
            return SMALL_BYTES
        wanted = max(frame_bytes, min(4 * frame_bytes, SEVERAL_BYTES_MAX))
        growth = GROWTH if len(self) < LARGE_BYTES else GROWTH_OF_LARGE
        return min(wanted, max(SMALL_BYTES, growth * len(self)))

    def resize(self, capacity: int) -> None:
        """Move what is here to a new buffer, with room for `capacity` bytes in all."""
        held = self.end - self.start
        assert capacity >= held
        view = memoryview(bytearray(capacity))
        view[:held] = self.view[self.start : self.end]
        self.view, self.start, self.end = view, 0, held
