"""What the compiled module offers; see `_fast.pyx`."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from anabranch.record.batch import BatchHeader
from anabranch.record.buffers import ByteBuffer

def crc32c(buffer: ByteBuffer, /) -> int: ...
def crc32c_by_tables(buffer: ByteBuffer, /) -> int: ...
def check_records(payload: ByteBuffer, record_count: int, keys_required: bool = False) -> int: ...
def read_header(buffer: ByteBuffer, position: int = 0) -> BatchHeader: ...
def check_batch(buffer: ByteBuffer, start: int, end: int, *, fresh: bool = True) -> BatchHeader: ...
def sound_batches(buffer: ByteBuffer, start: int, end: int, next_offset: int) -> tuple[int, int, int]: ...
def noted(batches: Sequence[Any]) -> list[tuple[int, int, int, bytes]]: ...
def keep_freed_memory(bytes_max: int) -> bool: ...
def return_freed() -> bool: ...

class ColumnDecoder:
    size_bytes: int
    def __init__(
        self,
        names: Sequence[str],
        start: int,
        end: int,
        verify: bool,
        transactional: bool,
        chunk_bytes: int,
        data_bytes: int,
    ) -> None: ...
    def fill(self, view: ByteBuffer, position: int) -> int: ...
    def add(self, header: BatchHeader, section: ByteBuffer) -> bool: ...
    def take(self) -> tuple[int, int, dict[str, Any]]: ...

def encode_records(
    first: int,
    last: int,
    room: int,
    times: Any,
    offsets: Any,
    keys: tuple[Any, Any, Any],
    values: tuple[Any, Any, Any],
    header_starts: Any,
    header_counts: Any,
    header_keys: tuple[Any, Any, Any],
    header_values: tuple[Any, Any, Any],
) -> bytes: ...

class PlainProduce:
    api_version: int
    correlation_id: int
    timeout_ms: int
    index: int
    topic: bytes
    row_count: int
    size: int
    lead: Any
    parts: list[Any] | None
    has_failed: bool
    frame_end: int
    last_offset_delta: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    batch: memoryview | None
    client: Any
    partition: Any
    error: Any
    on_close: Any
    pieces: Any
    base_offset: int
    end_offset: int
    deadline_ms: int
    holds: bool
    is_finished: bool
    is_settled: bool
    wait_safe: bool
    @property
    def last_sequence(self) -> int: ...
    def place(self, base_offset: int) -> None: ...
    def settle(self, log_start_offset: int) -> bool: ...

Plain = TypeVar("Plain", bound=PlainProduce)

def place_plain(
    jobs: list[Any], base_offset: int, generation: int
) -> list[tuple[memoryview, Any, Any, int]] | None: ...
def finish_plain(
    jobs: list[Any], safe_offset: int, log_start_offset: int
) -> tuple[int, list[Any]] | None: ...
def take_plain(
    kind: type[Plain],
    client: Any,
    buffer: memoryview,
    start: int,
    end: int,
    count_max: int,
    named: dict[bytes, list[Any]],
    numbered: dict[bytes, list[Any]],
    unpacked: Callable[[int, memoryview, int], bytes | None],
    now_ms: int,
    now_monotonic_ms: int,
) -> list[Plain]: ...
