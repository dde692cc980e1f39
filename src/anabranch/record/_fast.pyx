# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False
"""The hot loops of this room, compiled. Each function has a pure twin with the same meaning:

    crc32c          crc32c.crc32c_pure
    check_records   record_check.check_records_pure
    read_header     batch.read_header_pure
    check_batch     batch.check_batch_pure
    noted           log.rolling.noted_pure
    ColumnDecoder   columns.numpy_decoder.NumpyDecoder (_columns.pxi)
    encode_records  columns.to_batches.built (_columns_back.pxi)

`form` says which of the two runs; the same tests run over both, and some compare them with each other. What is wrong
with refused bytes is said in one place: a function here that finds anything amiss asks its twin, which raises.

Bytes are read in place through the buffer protocol, by hand because a typed memoryview costs 50 ns more a call,
and never outside [0, length) whatever they say. From `_LONG_BYTES` on, other threads run meanwhile.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MAX, INT64_MIN, int16_t, int32_t, int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy


cdef extern from "_crc32c.h" nogil:
    void crc32c_prepare()
    uint32_t crc32c_of(const unsigned char *at, size_t size)
    uint32_t crc32c_of_tables "crc32c_by_tables"(const unsigned char *at, size_t size)


cdef extern from *:
    """
    /* A named tuple is made as tuple.__new__ makes it, without the calls that its own _make goes through. */
    static PyObject *tuple_of_type(PyObject *type, PyObject *fields) {
        PyObject *arguments = PyTuple_Pack(1, fields);
        if (arguments == NULL)
            return NULL;
        PyObject *made = PyTuple_Type.tp_new((PyTypeObject *)type, arguments, NULL);
        Py_DECREF(arguments);
        return made;
    }
    """
    object tuple_of_type(object type, tuple fields)


crc32c_prepare()

cdef enum:
    _LONG_BYTES = 65536  # Whoever takes the lock meanwhile may keep it for 5 ms: not worth it for less than this.
    _SIZE_BYTES = 4
    _UNSUMMED_BYTES = 17
    _HEADER_BYTES = 61
    _LOG_OVERHEAD = 12
    _CHECKED_POSITION = 21
    _CODEC_POSITION = 22
    _MAGIC = 2
    _CODEC_MASK = 7
    _CODEC_MAX = 4
    _ZSTD = 4
    _ZSTD_SINCE = 7
    _PARTS_MAX = 1000  # Of a plain request. No client sends more by itself, and an answer's counts fit three bytes.
    _PACKED_BYTES_MAX = 65536  # Of a compressed batch: what has more is likely to be a worker's.
    _UNPACKED_BYTES_MAX = 4194304  # In one go: what is unpacked here, everybody waits for.

# The twins' modules import this one, so what is needed of them is looked up when it is first needed.
cdef object _header_type = None


# --- The checksum


cdef inline uint32_t _sum(const unsigned char *at, Py_ssize_t size):
    cdef uint32_t crc
    if size < _LONG_BYTES:
        return crc32c_of(at, size)
    with nogil:
        crc = crc32c_of(at, size)
    return crc


def crc32c(buffer, /):
    """The checksum of the whole buffer."""
    cdef Py_buffer view
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    cdef uint32_t crc = _sum(<const unsigned char *> view.buf, view.len)
    PyBuffer_Release(&view)
    return crc


def crc32c_by_tables(buffer, /):
    """The same, the way a processor without instructions for it has to go; for tests on those that have them."""
    cdef Py_buffer view
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    cdef uint32_t crc = crc32c_of_tables(<const unsigned char *> view.buf, view.len)
    PyBuffer_Release(&view)
    return crc


# --- The records of a batch. Places are pointers; NULL is the place after something that does not fit.


def check_records(payload, Py_ssize_t record_count, bint keys_required=False):
    """The largest timestamp delta of a section that is exactly `record_count` whole records."""
    cdef Py_buffer view
    cdef int64_t newest
    cdef bint fits
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    if view.len < _LONG_BYTES:
        fits = _walk(<const unsigned char *> view.buf, view.len, record_count, keys_required, &newest)
    else:
        with nogil:
            fits = _walk(<const unsigned char *> view.buf, view.len, record_count, keys_required, &newest)
    PyBuffer_Release(&view)
    if not fits or record_count <= 0:
        from anabranch.record.record_check import check_records_pure

        newest_of_none = check_records_pure(payload, record_count, keys_required)
        if not fits:
            raise AssertionError("The pure form takes records that the compiled one refuses.")
        return newest_of_none
    return newest


cdef bint _walk(
    const unsigned char *at, Py_ssize_t size, Py_ssize_t record_count, bint keys_required, int64_t *newest
) noexcept nogil:
    """Whether the section is what it should be. No field may end beyond its record, no record beyond the section."""
    cdef const unsigned char *section_end = at + size
    cdef const unsigned char *end
    cdef uint64_t raw, number = 0
    cdef int64_t delta
    newest[0] = INT64_MIN
    while <Py_ssize_t> number < record_count:
        at = _after_integer(at, section_end, 32, &raw)
        if at == NULL or raw & 1 or raw >> 1 > <uint64_t> (section_end - at) or raw == 0:
            return False
        end = at + (raw >> 1)
        at = _after_integer(at + 1, end, 64, &raw)  # Past the attributes, of which no bit is used.
        if at == NULL:
            return False
        delta = _signed(raw)
        if delta > newest[0]:
            newest[0] = delta
        at = _after_integer(at, end, 32, &raw)
        if at == NULL or raw != number << 1:
            return False
        at = _after_bytes(at, end, keys_required)
        if at != NULL:
            at = _after_bytes(at, end, False)
        if at != NULL:
            at = _after_headers(at, end)
        if at != end:
            return False
        number += 1
    return at == section_end


cdef inline const unsigned char *_after_headers(const unsigned char *at, const unsigned char *end) noexcept nogil:
    cdef uint64_t raw, count
    at = _after_integer(at, end, 32, &raw)
    if at == NULL or raw & 1:
        return NULL
    for count in range(raw >> 1):  # Each takes at least two bytes, so that a false count soon finds the end.
        at = _after_bytes(at, end, True)
        if at == NULL:
            return NULL
        at = _after_bytes(at, end, False)
        if at == NULL:
            return NULL
    return at


cdef inline const unsigned char *_after_bytes(
    const unsigned char *at, const unsigned char *end, bint required
) noexcept nogil:
    """Past a key or a value, which may be null (-1) if it is not required."""
    cdef uint64_t raw
    at = _after_integer(at, end, 32, &raw)
    if at == NULL:
        return NULL
    if raw & 1:
        return at if raw == 1 and not required else NULL
    return at + (raw >> 1) if raw >> 1 <= <uint64_t> (end - at) else NULL


cdef inline const unsigned char *_after_integer(
    const unsigned char *at, const unsigned char *end, int bits, uint64_t *raw
) noexcept nogil:
    """Past a variable-length integer, whose zigzag form goes to `raw`."""
    cdef uint64_t byte
    cdef int shift = 7
    if at >= end:
        return NULL
    byte = at[0]
    at += 1
    raw[0] = byte & 127
    while byte > 127:
        if at >= end or shift >= bits:
            return NULL
        byte = at[0]
        at += 1
        if shift == 63 and byte > 1:
            return NULL
        raw[0] |= (byte & 127) << shift
        shift += 7
    if bits == 32 and raw[0] >> 32:
        return NULL
    return at


cdef inline int64_t _signed(uint64_t raw) noexcept nogil:
    return <int64_t> (raw >> 1 ^ (0 - (raw & 1)))


# --- The header of a batch


def read_header(buffer, Py_ssize_t position=0):
    """Reads and believes: nothing but the room for 61 bytes is checked."""
    cdef Py_buffer view
    header = None
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        if position >= 0 and view.len - position >= _HEADER_BYTES:
            header = _header_at(<const unsigned char *> view.buf + position)
    finally:
        PyBuffer_Release(&view)
    if header is None:
        from anabranch.record.batch import read_header_pure

        return read_header_pure(buffer, position)
    return header


def check_batch(buffer, Py_ssize_t start, Py_ssize_t end, *, bint fresh=True):
    """The header of the one whole batch that fills [start, end), once format, length, CRC and counts hold."""
    cdef Py_buffer view
    header = None
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        if start >= 0 and end <= view.len and _batch_holds(<const unsigned char *> view.buf + start, end - start, fresh):
            header = _header_at(<const unsigned char *> view.buf + start)
    finally:
        PyBuffer_Release(&view)
    if header is None:
        from anabranch.record.batch import check_batch_pure

        check_batch_pure(buffer, start, end, fresh=fresh)
        raise AssertionError("The pure form takes a batch that the compiled one refuses.")
    return header


cdef inline bint _batch_holds(const unsigned char *at, Py_ssize_t size, bint fresh):
    cdef int64_t count, last_offset_delta
    if size < _HEADER_BYTES or at[16] != _MAGIC or <int32_t> _big32(at + 8) != size - _LOG_OVERHEAD:
        return False
    count = <int32_t> _big32(at + 57)
    last_offset_delta = <int32_t> _big32(at + 23)
    if fresh:
        if count <= 0 or last_offset_delta != count - 1:
            return False
    elif count < 0 or count > last_offset_delta + 1:
        return False
    if (at[22] & _CODEC_MASK) > _CODEC_MAX:
        return False
    return _sum(at + _CHECKED_POSITION, size - _CHECKED_POSITION) == _big32(at + 17)


def sound_batches(buffer, Py_ssize_t start, Py_ssize_t end, int64_t next_offset):
    """Walk the batches of [start, end) up to the first that does not hold; see `record.batch_sums`."""
    cdef Py_buffer view
    cdef Py_ssize_t at = start, count = 0
    cdef uint32_t crc = 0
    cdef unsigned char *heads
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        end = min(end, view.len)
        if not 0 <= start <= end:
            raise ValueError(f"{start} to {end} is not within a buffer of {view.len} bytes")
        heads = <unsigned char *> malloc(((end - start) // _HEADER_BYTES + 1) * _UNSUMMED_BYTES)
        if heads == NULL:
            raise MemoryError
        if end - start < _LONG_BYTES:
            at = _walk_batches(<const unsigned char *> view.buf, start, end, &next_offset, heads, &count)
            crc = crc32c_of(heads, count * _UNSUMMED_BYTES)
        else:
            with nogil:
                at = _walk_batches(<const unsigned char *> view.buf, start, end, &next_offset, heads, &count)
                crc = crc32c_of(heads, count * _UNSUMMED_BYTES)
        free(heads)
    finally:
        PyBuffer_Release(&view)
    return at, next_offset, crc


cdef Py_ssize_t _walk_batches(
    const unsigned char *data, Py_ssize_t at, Py_ssize_t end, int64_t *next_offset, unsigned char *heads,
    Py_ssize_t *count,
) noexcept nogil:
    cdef const unsigned char *batch
    cdef int64_t base, delta
    cdef Py_ssize_t size
    while end - at >= _HEADER_BYTES:
        batch = data + at
        size = <Py_ssize_t> <int32_t> _big32(batch + 8) + _LOG_OVERHEAD
        base = <int64_t> _big64(batch)
        delta = <int32_t> _big32(batch + 23)
        if batch[16] != _MAGIC or size < _HEADER_BYTES or size > end - at or delta < 0:
            break
        if base < next_offset[0] or base > INT64_MAX - delta - 1:
            break
        if crc32c_of(batch + _CHECKED_POSITION, size - _CHECKED_POSITION) != _big32(batch + 17):
            break
        memcpy(heads + count[0] * _UNSUMMED_BYTES, batch, _UNSUMMED_BYTES)
        count[0] += 1
        next_offset[0] = base + delta + 1
        at += size
    return at


cdef inline object _header_at(const unsigned char *at):
    global _header_type
    if _header_type is None:
        from anabranch.record.batch import BatchHeader as _header_type
    return tuple_of_type(_header_type, (
        <int64_t> _big64(at),
        <int32_t> _big32(at + 8),
        <int32_t> _big32(at + 12),
        <signed char> at[16],
        _big32(at + 17),
        <int16_t> (at[21] << 8 | at[22]),
        <int32_t> _big32(at + 23),
        <int64_t> _big64(at + 27),
        <int64_t> _big64(at + 35),
        <int64_t> _big64(at + 43),
        <int16_t> (at[51] << 8 | at[52]),
        <int32_t> _big32(at + 53),
        <int32_t> _big32(at + 57),
    ))


cdef inline uint32_t _big32(const unsigned char *at) noexcept nogil:
    return <uint32_t> at[0] << 24 | <uint32_t> at[1] << 16 | <uint32_t> at[2] << 8 | at[3]


cdef inline uint64_t _big64(const unsigned char *at) noexcept nogil:
    return <uint64_t> _big32(at) << 32 | _big32(at + 4)


# --- The memory of the process


cdef extern from *:
    """
    #if defined(__GLIBC__)
    #include <malloc.h>
    static int keep_freed(int bytes) {
        return mallopt(M_TRIM_THRESHOLD, bytes) && mallopt(M_MMAP_THRESHOLD, bytes);
    }
    static int trim_freed(void) { return malloc_trim(0); }
    #else
    static int keep_freed(int bytes) { return 0; }
    static int trim_freed(void) { return 0; }
    #endif
    """
    int keep_freed(int bytes)
    int trim_freed() nogil


def keep_freed_memory(int bytes_max):
    """Let the process keep so much of what it frees instead of giving it back at once; whether the system does that.

    A megabyte that a batch unpacks to is otherwise taken from the system and given back for each batch, page by page,
    which costs several times as much as to unpack it.
    """
    return bool(keep_freed(bytes_max))


def return_freed():
    """Give all freed memory back to the system; whether there was any."""
    cdef int any_freed
    with nogil:
        any_freed = trim_freed()
    return bool(any_freed)


# --- What a log notes of the batches it was given


def noted(batches):
    """(size, last offset, largest timestamp, first 17 bytes) of each (batch, base offset, last offset, timestamp)."""
    cdef Py_buffer view
    found = []
    for batch in batches:
        data, _, last_offset, max_timestamp = batch
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        head = PyBytes_FromStringAndSize(<const char *> view.buf, min(view.len, _UNSUMMED_BYTES))
        found.append((view.len, last_offset, max_timestamp, head))
        PyBuffer_Release(&view)
    return found


# --- A plain produce request: batches that may be kept as they came. It has no twin: what is not plain, and every
# --- request in the pure form, goes the general way (`broker.handlers.produce`), which alone knows what may be wrong.


cdef class PlainProduce:
    """One batch of a produce request; `broker.write.plain_lane` makes an append job of it.

    The first one of a request *leads*: it stands for the request as a whole, and counts those that are not done. A
    request of one batch is its lead and nothing else.
    """

    cdef readonly int api_version, timeout_ms, index
    cdef readonly int32_t correlation_id, last_offset_delta, base_sequence
    cdef readonly int16_t producer_epoch
    cdef readonly int64_t max_timestamp, producer_id
    cdef readonly Py_ssize_t batch_start, frame_end, size
    cdef readonly bytes topic
    """The topic's name, or from version 13 on the 16 bytes of its id."""
    cdef readonly Py_ssize_t row_count
    """How many batches of the request follow under the same entry for a topic, this one included; 0: not the first."""
    cdef public object batch
    """The bytes, until they are written."""

    # --- the request as a whole
    cdef readonly PlainProduce lead
    """None: it leads itself."""
    cdef readonly list parts
    """Of a lead: all batches of the request in their order; None: there is but one."""
    cdef Py_ssize_t topic_count, open_count
    cdef public bint has_failed

    # --- what an append job and a call know besides
    cdef public object client, partition, error, on_close
    cdef public object pieces
    cdef public int64_t base_offset, end_offset, deadline_ms
    cdef int64_t log_start_offset, ahead_ms_max
    cdef public bint holds, is_finished, is_settled, wait_safe

    @property
    def last_sequence(self):
        """The sequence of the last record, which follows 2^31-1 with 0; -1 without an idempotent producer."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF

    cpdef place(self, int64_t base_offset):
        """Remember where the batch lies (or, for a duplicate, where its original lies)."""
        self.base_offset = base_offset
        self.end_offset = base_offset + self.last_offset_delta + 1

    cpdef bint let_go(self):
        """Whether the request needs its bytes no more: the writer has taken them at the end of the turn they came in."""
        return True

    cpdef bint settle(self, int64_t log_start_offset) except -1:
        """The batch is done. Whether that settles the request: its lead then has the answer in `pieces`.

        If a batch has failed, the answer is the lead's `explained()`.
        """
        cdef PlainProduce lead = self if self.lead is None else self.lead
        self.log_start_offset = log_start_offset
        lead.open_count -= 1
        if lead.open_count:
            return False
        lead.pieces = (lead.explained() if lead.has_failed else _answer(lead),)
        lead.is_settled = True
        lead.parts = None  # It is one of them: a circle that would wait for the collector.
        return True


cdef bytes _answer(PlainProduce lead):
    """The whole frame that tells the producer where its batches lie: size, header, body."""
    cdef PlainProduce part
    cdef int version = lead.api_version
    cdef bint flexible = version >= 9
    cdef Py_ssize_t size = _answer_size(lead)
    frame = PyBytes_FromStringAndSize(NULL, size)
    cdef unsigned char *start = <unsigned char *> PyBytes_AS_STRING(frame)
    cdef unsigned char *at = _put32(_put32(start, size - _SIZE_BYTES), lead.correlation_id)
    if flexible:
        at[0] = 0
        at += 1
    at = _put_count(at, lead.topic_count, flexible)
    if lead.parts is None:
        at = _put_part(at, lead, version)
    else:
        for entry in lead.parts:
            part = <PlainProduce> entry
            if part.row_count and part is not lead and flexible:
                at[0] = 0  # No tags of the topic before.
                at += 1
            at = _put_part(at, part, version)
    if flexible:
        at[0] = 0
        at += 1
    at = _put32(at, 0)
    if flexible:
        at[0] = 0
        at += 1
    assert at - start == size, "an answer has another size than was counted"
    return frame


cdef Py_ssize_t _answer_size(PlainProduce lead):
    cdef PlainProduce part
    cdef int version = lead.api_version
    cdef bint flexible = version >= 9
    cdef Py_ssize_t row = 33 if flexible else 36 if version >= 8 else 30 if version >= 5 else 22
    cdef Py_ssize_t size = (14 if flexible else 12) + _count_size(lead.topic_count, flexible)
    if lead.parts is None:
        return size + row + _topic_size(lead, version)
    for entry in lead.parts:
        part = <PlainProduce> entry
        size += row
        if part.row_count:
            size += _topic_size(part, version)
    return size


cdef inline Py_ssize_t _topic_size(PlainProduce part, int version):
    cdef Py_ssize_t size = len(part.topic) + _count_size(part.row_count, version >= 9)
    if version < 9:
        return size + 2
    return size + 1 + (_count_size(len(part.topic), True) if version < 13 else 0)


cdef inline unsigned char *_put_part(unsigned char *at, PlainProduce part, int version):
    """One row, behind its topic if it is the first of it."""
    cdef bint flexible = version >= 9
    cdef Py_ssize_t topic_size
    if part.row_count:
        topic_size = len(part.topic)
        if version < 9:
            at[0], at[1] = topic_size >> 8, topic_size
            at += 2
        elif version < 13:
            at = _put_count(at, topic_size, True)
        memcpy(at, PyBytes_AS_STRING(part.topic), topic_size)
        at = _put_count(at + topic_size, part.row_count, flexible)
    at = _put32(at, part.index)
    at[0] = at[1] = 0  # No error.
    at = _put64(_put64(at + 2, part.base_offset), -1)
    if version >= 5:
        at = _put64(at, part.log_start_offset)
    if flexible:
        at[0], at[1], at[2] = 1, 0, 0  # No record errors, no message, no tags.
        at += 3
    elif version >= 8:
        at = _put32(at, 0)
        at[0] = at[1] = 255
        at += 2
    return at


def place_plain(list jobs, int64_t base_offset, int32_t generation):
    """Give batches of plain requests their places, as `broker.topics.partition` does: stamped in place, and listed as
    (batch, base offset, last offset, largest timestamp). None, and nothing is done, unless all of them are plain
    and without an idempotent producer.
    """
    cdef PlainProduce job
    cdef Py_buffer view
    cdef unsigned char *at
    for entry in jobs:
        if not isinstance(entry, PlainProduce) or (<PlainProduce> entry).producer_id >= 0:
            return None
    placed = []
    for entry in jobs:
        job = <PlainProduce> entry
        PyObject_GetBuffer(job.batch, &view, PyBUF_WRITABLE)
        at = <unsigned char *> view.buf
        _put64(at, base_offset)
        _put32(at + 12, generation)
        PyBuffer_Release(&view)
        job.base_offset = base_offset
        job.end_offset = base_offset + job.last_offset_delta + 1
        placed.append((job.batch, base_offset, job.end_offset - 1, job.max_timestamp))
        base_offset = job.end_offset
    return placed


def take_plain(
    type kind, client, buffer, Py_ssize_t start, Py_ssize_t end, Py_ssize_t count_max,
    dict named, dict numbered, unpacked, int64_t now_ms, int64_t now_monotonic_ms,
):
    """The plain requests in `buffer[start:end]` that may be written as they are, in order, at most `count_max`; of each
    the lead, a `kind` of `PlainProduce`.

    `named` and `numbered` have the partitions of a topic by its name and by its id. What a partition's topic allows is
    its `plain_limits`: the largest batch, how far ahead of `now_ms` a record may be, how many copies acks=all needs,
    whether compressed batches are kept; or None. `unpacked` answers the records of compressed bytes, given their codec
    and how many there may be, or None. The first request that is not plain, not whole, not allowed or in any doubt ends
    the list: it is left to the general way.
    """
    cdef Py_buffer view
    cdef PlainProduce lead
    cdef Py_ssize_t unpack_left = _UNPACKED_BYTES_MAX
    taken = []
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        if start < 0 or end > view.len:
            return taken
        while start < end and len(taken) < count_max:
            lead = _plain_frame(kind, <const unsigned char *> view.buf, start, end)
            if lead is None:
                break
            if not _is_allowed(
                lead, named if lead.api_version < 13 else numbered, unpacked, &unpack_left, now_ms, buffer,
                <const unsigned char *> view.buf,
            ):
                _let_go(lead)
                break
            lead.client = client
            if lead.wait_safe:
                _set_deadline(lead, now_monotonic_ms)
            taken.append(lead)
            start = lead.frame_end
    finally:
        PyBuffer_Release(&view)
    return taken


cdef _set_deadline(PlainProduce lead, int64_t now_monotonic_ms):
    lead.deadline_ms = now_monotonic_ms + max(0, lead.timeout_ms)
    if lead.parts is not None:
        for entry in lead.parts:
            (<PlainProduce> entry).deadline_ms = lead.deadline_ms


cdef _let_go(PlainProduce lead):
    """Nothing of it is taken. What it holds must not wait for the collector: a view keeps a whole buffer alive."""
    lead.batch = None
    if lead.parts is not None:
        for entry in lead.parts:
            (<PlainProduce> entry).batch = None
        lead.parts = None


cdef bint _is_allowed(
    PlainProduce lead, dict routes, unpacked, Py_ssize_t *unpack_left, int64_t now_ms, buffer,
    const unsigned char *base,
) except -1:
    """Whether every batch of the request may be written as it is. What costs little is asked first, of all of them."""
    cdef PlainProduce part
    if lead.parts is None:
        return _is_routed(lead, routes, base) and _is_good(lead, unpacked, unpack_left, now_ms, buffer, base)
    partitions = set()
    for entry in lead.parts:
        part = <PlainProduce> entry
        if not _is_routed(part, routes, base):
            return False
        partitions.add(part.partition)
    if len(partitions) < len(lead.parts):
        return False  # One of them twice.
    for entry in lead.parts:
        if not _is_good(<PlainProduce> entry, unpacked, unpack_left, now_ms, buffer, base):
            return False
    return True


cdef bint _is_routed(PlainProduce part, dict routes, const unsigned char *base) except -1:
    """Whether the partition is there, and takes batches of this size and codec."""
    cdef int64_t bytes_max, copies_min
    cdef list partitions = routes.get(part.topic)
    cdef unsigned char codec
    if partitions is None or not 0 <= part.index < len(partitions):
        return False
    part.partition = partitions[part.index]
    if part.partition is None:
        return False  # Kept by another broker.
    limits = part.partition.plain_limits
    if limits is None:
        return False
    bytes_max, part.ahead_ms_max, copies_min, keeps_packed = limits
    if part.size > bytes_max or part.size < _HEADER_BYTES or (part.wait_safe and copies_min > 1):
        return False
    codec = base[part.batch_start + _CODEC_POSITION] & _CODEC_MASK
    if codec:
        if not keeps_packed or part.size > _PACKED_BYTES_MAX:
            return False
        return codec != _ZSTD or part.api_version >= _ZSTD_SINCE
    return True


cdef bint _is_good(
    PlainProduce part, unpacked, Py_ssize_t *unpack_left, int64_t now_ms, buffer, const unsigned char *base
) except -1:
    """Whether the batch itself is as it should be."""
    part.batch = buffer[part.batch_start : part.batch_start + part.size]
    if not _is_plain_batch(part, base + part.batch_start, unpacked, unpack_left):
        return False
    # In numbers that may wrap: whoever is that far away from now is left to the general way.
    return <int64_t> (<uint64_t> part.max_timestamp - <uint64_t> now_ms) <= part.ahead_ms_max


cdef PlainProduce _plain_frame(type kind, const unsigned char *base, Py_ssize_t start, Py_ssize_t end):
    """The request whose frame begins at `start`, size and all, without a look at its batches."""
    cdef Py_ssize_t frame_end
    cdef PlainProduce lead
    if end - start < _SIZE_BYTES:
        return None
    frame_end = start + _SIZE_BYTES + <int32_t> _big32(base + start)
    if frame_end <= start + _SIZE_BYTES or frame_end > end:
        return None
    lead = _plain_produce(kind, base, start + _SIZE_BYTES, frame_end)
    if lead is not None:
        lead.frame_end = frame_end
    return lead


def finish_plain(list jobs, int64_t safe_offset, int64_t log_start_offset):
    """Settle plain batches of one partition that are written. Returns how many bytes they have, and the clients whose
    requests have got their answer by that.

    None, and nothing is done, unless all of them are plain, and those that wait for safety end below `safe_offset`.
    """
    cdef PlainProduce job, lead
    cdef Py_ssize_t size = 0
    for entry in jobs:
        if not isinstance(entry, PlainProduce):
            return None
        job = <PlainProduce> entry
        if job.wait_safe and job.end_offset > safe_offset:
            return None
    clients = []
    client = None
    for entry in jobs:
        job = <PlainProduce> entry
        assert not job.is_finished, "an append job was answered twice"
        job.batch = None  # The bytes live in the connection's buffer, which is used again from here on.
        job.is_finished = True
        size += job.size
        if not job.settle(log_start_offset):
            continue
        lead = job if job.lead is None else job.lead
        if lead.client is not client:
            client = lead.client
            clients.append(client)
    return size, clients


cdef PlainProduce _plain_produce(
    type kind, const unsigned char *base, Py_ssize_t start, Py_ssize_t end_position
):
    """The lead of the request whose header begins at `start`; None if it is not plain, or not what it should be."""
    cdef PlainProduce lead = None
    cdef PlainProduce part
    cdef list parts = None
    cdef const unsigned char *at = base + start
    cdef const unsigned char *end = base + end_position
    cdef Py_ssize_t topic_count, row_count, topic_number, row_number, size, part_count = 0
    cdef int version, acks, timeout_ms
    cdef int32_t correlation_id
    cdef bint flexible
    if end - at < 40 or at[0] | at[1] | at[2] or not 3 <= at[3] <= 13:
        return None
    version = at[3]
    flexible = version >= 9
    correlation_id = <int32_t> _big32(at + 4)
    at = _after_plain_client(at + 8, end, flexible)
    if at == NULL or end - at < 12:
        return None
    # --- Transactional id (none), acks, timeout.
    if flexible:
        if at[0] != 0:
            return None
        at += 1
    else:
        if at[0] != 255 or at[1] != 255:
            return None
        at += 2
    acks = <int16_t> (at[0] << 8 | at[1])
    timeout_ms = <int32_t> _big32(at + 2)
    if acks != 1 and acks != -1:
        return None
    # --- Topics and their batches. A count that lies finds the end of the frame.
    at = _after_count(at + 6, end, flexible, &topic_count)
    if at == NULL:
        return None
    for topic_number in range(topic_count):
        at = _after_topic(at, end, version, &size)
        if at == NULL:
            return None
        topic = PyBytes_FromStringAndSize(<const char *> at - size, size)
        at = _after_count(at, end, flexible, &row_count)
        if at == NULL:
            return None
        for row_number in range(row_count):
            if part_count == _PARTS_MAX or end - at < 5:
                return None
            part = kind.__new__(kind)
            part.index = <int32_t> _big32(at)
            at = _after_records(at + 4, end, flexible, &part.size)
            if at == NULL:
                return None
            part.batch_start = at - base - part.size
            if flexible:
                if end - at < 1 or at[0]:
                    return None
                at += 1
            part.api_version = version
            part.topic = topic
            part.row_count = 0 if row_number else row_count
            part.wait_safe = acks == -1
            part.base_offset = part.end_offset = -1
            if lead is None:
                lead = part
            else:
                if parts is None:
                    parts = [lead]
                parts.append(part)
            part_count += 1
        if flexible:
            if end - at < 1 or at[0]:
                return None
            at += 1
    if flexible:
        if end - at < 1 or at[0]:
            return None
        at += 1
    if at != end or lead is None:
        return None
    if parts is not None:
        lead.parts = parts
        for row_number in range(1, part_count):
            (<PlainProduce> parts[row_number]).lead = lead
    lead.correlation_id = correlation_id
    lead.timeout_ms = timeout_ms
    lead.topic_count = topic_count
    lead.open_count = part_count
    lead.pieces = ()
    return lead


cdef inline const unsigned char *_after_count(
    const unsigned char *at, const unsigned char *end, bint flexible, Py_ssize_t *count
) noexcept:
    """Past the length of an array that has something in it."""
    cdef uint64_t raw
    if flexible:
        at = _after_integer(at, end, 32, &raw)
        if at == NULL or raw < 2:
            return NULL
        count[0] = raw - 1
        return at
    if end - at < 4:
        return NULL
    count[0] = <int32_t> _big32(at)
    return at + 4 if count[0] > 0 else NULL


cdef inline const unsigned char *_after_topic(
    const unsigned char *at, const unsigned char *end, int version, Py_ssize_t *size
) noexcept:
    """Past a topic's name or id, of `size` bytes."""
    if version >= 13:
        size[0] = 16
        return at + 16 if end - at >= 16 else NULL
    if version >= 9:
        at = _after_short_length(at, end, size)
        if at == NULL:
            return NULL
    else:
        if end - at < 2:
            return NULL
        size[0] = at[0] << 8 | at[1]
        at += 2
    if size[0] == 0 or size[0] > 249 or end - at < size[0] or not _is_ascii(at, size[0]):
        return NULL
    return at + size[0]


cdef inline const unsigned char *_after_records(
    const unsigned char *at, const unsigned char *end, bint flexible, Py_ssize_t *size
) noexcept:
    """Past the bytes of a batch, of which there are `size`."""
    if flexible:
        at = _after_short_length(at, end, size)
        return NULL if at == NULL else at + size[0]
    if end - at < 4:
        return NULL
    size[0] = <int32_t> _big32(at)
    at += 4
    return at + size[0] if 0 <= size[0] <= end - at else NULL


cdef bint _is_plain_batch(
    PlainProduce part, const unsigned char *at, unpacked, Py_ssize_t *unpack_left
) except -1:
    """Whether the batch at `at` is whole, numbered from 0 and as its header says; what it says is kept."""
    cdef Py_ssize_t size = part.size
    cdef int64_t newest, base_ms
    if size < _HEADER_BYTES or at[21] | (at[22] & ~_CODEC_MASK) or _big64(at) != 0 or not _batch_holds(at, size, True):
        return False
    if at[22]:
        records = unpacked(at[22], part.batch[_HEADER_BYTES:], unpack_left[0])
        if records is None or not _are_records(records, <int32_t> _big32(at + 57), &newest):
            return False
        unpack_left[0] -= len(records)
    elif not _walk(at + _HEADER_BYTES, size - _HEADER_BYTES, <int32_t> _big32(at + 57), False, &newest):
        return False
    base_ms = <int64_t> _big64(at + 27)
    if base_ms < 0 or newest > INT64_MAX - base_ms:
        return False  # Some record's time may not fit 64 bits: that has to be looked into.
    if base_ms + newest != <int64_t> _big64(at + 35):
        return False
    part.last_offset_delta = <int32_t> _big32(at + 23)
    part.max_timestamp = <int64_t> _big64(at + 35)
    part.producer_id = <int64_t> _big64(at + 43)
    part.producer_epoch = <int16_t> (at[51] << 8 | at[52])
    part.base_sequence = <int32_t> _big32(at + 53)
    return True


cdef bint _are_records(records, int32_t count, int64_t *newest) except -1:
    cdef Py_buffer view
    PyObject_GetBuffer(records, &view, PyBUF_SIMPLE)
    cdef bint fits = _walk(<const unsigned char *> view.buf, view.len, count, False, newest)
    PyBuffer_Release(&view)
    return fits


cdef inline const unsigned char *_after_plain_client(
    const unsigned char *at, const unsigned char *end, bint flexible
) noexcept:
    """Past the client's name, and the tags of a header that has none."""
    cdef int size = <int16_t> (at[0] << 8 | at[1])
    at += 2
    if size > 0:
        if end - at <= size or not _is_ascii(at, size):
            return NULL
        at += size
    elif size < -1:
        return NULL
    if flexible:
        if at[0]:
            return NULL
        at += 1
    return at


cdef inline const unsigned char *_after_short_length(
    const unsigned char *at, const unsigned char *end, Py_ssize_t *length
) noexcept:
    """Past a compact length, which is one more than what it counts; NULL if that reaches beyond `end`."""
    cdef uint64_t raw
    at = _after_integer(at, end, 32, &raw)
    if at == NULL or raw == 0 or raw - 1 > <uint64_t> (end - at):
        return NULL
    length[0] = raw - 1
    return at


cdef inline bint _is_ascii(const unsigned char *at, Py_ssize_t size) noexcept:
    cdef unsigned char bits = 0
    cdef Py_ssize_t number
    for number in range(size):
        bits |= at[number]
    return bits < 128


cdef inline unsigned char *_put32(unsigned char *at, uint32_t value) noexcept:
    at[0], at[1], at[2], at[3] = value >> 24, value >> 16, value >> 8, value
    return at + 4


cdef inline unsigned char *_put64(unsigned char *at, uint64_t value) noexcept:
    return _put32(_put32(at, value >> 32), <uint32_t> value)


cdef inline unsigned char *_put_count(unsigned char *at, uint64_t count, bint flexible) noexcept:
    """The length of an array, or in the flexible form of a string."""
    if not flexible:
        return _put32(at, <uint32_t> count)
    count += 1
    while count > 127:
        at[0] = count | 128
        count >>= 7
        at += 1
    at[0] = count
    return at + 1


cdef inline Py_ssize_t _count_size(uint64_t count, bint flexible) noexcept:
    return 4 if not flexible else 1 if count < 127 else 2 if count < 16383 else 3


include "_columns.pxi"
include "_columns_back.pxi"
