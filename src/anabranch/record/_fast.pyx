# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False
"""The hot loops of this room, compiled. Each function has a pure twin with the same meaning:

    crc32c          crc32c.crc32c_pure
    check_records   record_check.check_records_pure
    read_header     batch.read_header_pure
    check_batch     batch.check_batch_pure
    noted           log.rolling.noted_pure

`form` says which of the two runs; the same tests run over both, and some compare them with each other. What is wrong
with refused bytes is said in one place: a function here that finds anything amiss asks its twin, which raises.

Bytes are read in place through the buffer protocol, by hand because a typed memoryview costs 50 ns more a call,
and never outside [0, length) whatever they say. From `_LONG_BYTES` on, other threads run meanwhile.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MIN, int16_t, int32_t, int64_t, uint32_t, uint64_t
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
    _MAGIC = 2
    _CODEC_MASK = 7
    _CODEC_MAX = 4

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
    #else
    static int keep_freed(int bytes) { return 0; }
    #endif
    """
    int keep_freed(int bytes)


def keep_freed_memory(int bytes_max):
    """Let the process keep so much of what it frees instead of giving it back at once; whether the system does that.

    A megabyte that a batch unpacks to is otherwise taken from the system and given back for each batch, page by page,
    which costs several times as much as to unpack it.
    """
    return bool(keep_freed(bytes_max))


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


# --- A plain produce request: one uncompressed batch for one partition. It has no twin: what is not plain, and every
# --- request in the pure form, goes the general way (`broker.handlers.produce`), which alone knows what may be wrong.


cdef class PlainProduce:
    """A produce request with all that its answer needs; `broker.plain_lane` makes an append job of it."""

    cdef readonly int api_version, acks, timeout_ms, index
    cdef readonly int32_t correlation_id, last_offset_delta, base_sequence
    cdef readonly int16_t producer_epoch
    cdef readonly int64_t max_timestamp, producer_id
    cdef readonly Py_ssize_t batch_start, frame_end, size
    cdef readonly bytes topic
    """The topic's name, or from version 13 on the 16 bytes of its id."""
    cdef public object batch
    """The bytes, until they are written."""

    # --- what an append job and a call know besides
    cdef public object client, partition, error, on_close
    cdef public object pieces
    cdef public int64_t base_offset, end_offset, deadline_ms
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

    def answer(self, int64_t log_start_offset):
        """The whole frame that tells the producer of `base_offset`: size, header, body."""
        return _answer(self, log_start_offset)


cdef bytes _answer(PlainProduce produce, int64_t log_start_offset):
    cdef unsigned char head[32]
    cdef unsigned char tail[48]
    cdef unsigned char *at = head + 4
    cdef Py_ssize_t head_size, tail_size, topic_size = len(produce.topic)
    at = _put32(at, produce.correlation_id)
    if produce.api_version < 9:
        at = _put32(at, 1)
        at[0], at[1] = topic_size >> 8, topic_size
        at += 2
    else:
        at[0], at[1] = 0, 2  # No tags; an array of one.
        at += 2
        if produce.api_version < 13:
            at = _put_unsigned(at, topic_size + 1)
    head_size = at - head
    at = tail
    if produce.api_version < 9:
        at = _put32(at, 1)
    else:
        at[0] = 2
        at += 1
    at = _put32(at, produce.index)
    at[0] = at[1] = 0  # No error.
    at = _put64(_put64(at + 2, produce.base_offset), -1)
    if produce.api_version >= 5:
        at = _put64(at, log_start_offset)
    if produce.api_version >= 9:
        at[0], at[1], at[2], at[3] = 1, 0, 0, 0  # No record errors, no message, no tags, no tags of the topic.
        at = _put32(at + 4, 0)
        at[0] = 0
        at += 1
    else:
        if produce.api_version >= 8:
            at = _put32(at, 0)
            at[0] = at[1] = 255
            at += 2
        at = _put32(at, 0)
    tail_size = at - tail
    _put32(head, head_size - 4 + topic_size + tail_size)
    frame = PyBytes_FromStringAndSize(NULL, head_size + topic_size + tail_size)
    at = <unsigned char *> PyBytes_AS_STRING(frame)
    memcpy(at, head, head_size)
    memcpy(at + head_size, PyBytes_AS_STRING(produce.topic), topic_size)
    memcpy(at + head_size + topic_size, tail, tail_size)
    return frame


def place_plain(list jobs, int64_t base_offset, int32_t generation):
    """Give batches of plain requests their places, as `broker.partition` does: stamped in place, and listed as
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
    dict named, dict numbered, int64_t now_ms,
):
    """The plain requests in `buffer[start:end]` that may be written as they are, in order, at most `count_max`; each a
    `kind` of `PlainProduce`.

    `named` and `numbered` have the partitions of a topic by its name and by its id. What a partition's topic allows is
    its `plain_limits`: the largest batch, how far ahead of `now_ms` a record may be, how many copies acks=all needs; or
    None. The first that is not plain, not whole, not allowed or in any doubt ends the list: it is left to the general way.
    """
    cdef Py_buffer view
    cdef PlainProduce produce
    taken = []
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        if start < 0 or end > view.len:
            return taken
        while start < end and len(taken) < count_max:
            produce = _plain_frame(kind, <const unsigned char *> view.buf, start, end)
            if produce is None or not _is_allowed(
                produce, named if produce.api_version < 13 else numbered, now_ms, <const unsigned char *> view.buf
            ):
                break
            produce.batch = buffer[produce.batch_start : produce.batch_start + produce.size]
            produce.client = client
            taken.append(produce)
            start = produce.frame_end
    finally:
        PyBuffer_Release(&view)
    return taken


cdef bint _is_allowed(PlainProduce produce, dict routes, int64_t now_ms, const unsigned char *base) except -1:
    """Whether the partition is there, and takes the batch. What costs most is asked last."""
    cdef int64_t bytes_max, ahead_ms_max, copies_min
    cdef list partitions = routes.get(produce.topic)
    if partitions is None or not 0 <= produce.index < len(partitions):
        return False
    produce.partition = partitions[produce.index]
    limits = produce.partition.plain_limits
    if limits is None:
        return False
    bytes_max, ahead_ms_max, copies_min = limits
    if produce.size > bytes_max or (produce.wait_safe and copies_min > 1):
        return False
    if not _is_plain_batch(produce, base + produce.batch_start):
        return False
    # In numbers that may wrap: whoever is that far away from now is left to the general way.
    return <int64_t> (<uint64_t> produce.max_timestamp - <uint64_t> now_ms) <= ahead_ms_max


cdef PlainProduce _plain_frame(type kind, const unsigned char *base, Py_ssize_t start, Py_ssize_t end):
    """The request whose frame begins at `start`, size and all, without a look at its batch."""
    cdef Py_ssize_t frame_end
    cdef PlainProduce produce
    if end - start < _SIZE_BYTES:
        return None
    frame_end = start + _SIZE_BYTES + <int32_t> _big32(base + start)
    if frame_end <= start + _SIZE_BYTES or frame_end > end:
        return None
    produce = _plain_produce(kind, base, start + _SIZE_BYTES, frame_end)
    if produce is not None:
        produce.frame_end = frame_end
    return produce


def finish_plain(list jobs, int64_t safe_offset, int64_t log_start_offset):
    """Answer plain requests that are written: each gets its frame. Returns how many bytes they wrote, and who asked.

    None, and nothing is done, unless all of them are plain, and those that wait for safety end below `safe_offset`.
    """
    cdef PlainProduce job
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
        job.is_finished = job.is_settled = True
        job.pieces = (_answer(job, log_start_offset),)
        size += job.size
        if job.client is not client:
            client = job.client
            clients.append(client)
    return size, clients


cdef PlainProduce _plain_produce(
    type kind, const unsigned char *base, Py_ssize_t start, Py_ssize_t end_position
):
    cdef PlainProduce produce
    cdef const unsigned char *at = base + start
    cdef const unsigned char *end = base + end_position
    cdef const unsigned char *topic
    cdef Py_ssize_t topic_size, batch_size
    cdef int version, acks, timeout_ms, index
    cdef int32_t correlation_id
    if end - at < 40 or at[0] | at[1] | at[2] or not 3 <= at[3] <= 13:
        return None
    version = at[3]
    correlation_id = <int32_t> _big32(at + 4)
    at = _after_plain_client(at + 8, end, version >= 9)
    if at == NULL or end - at < 16:
        return None
    # --- Transactional id (none), acks, timeout, one topic.
    if version >= 9:
        if at[0] != 0 or at[7] != 2:
            return None
        at += 1
    else:
        if at[0] != 255 or at[1] != 255 or _big32(at + 8) != 1:
            return None
        at += 2
    acks = <int16_t> (at[0] << 8 | at[1])
    timeout_ms = <int32_t> _big32(at + 2)
    if acks != 1 and acks != -1:
        return None
    if version >= 13:
        topic, topic_size = at + 7, 16
    elif version >= 9:
        at = _after_short_length(at + 7, end, &topic_size)
        if at == NULL:
            return None
        topic = at
    else:
        topic, topic_size = at + 12, at[10] << 8 | at[11]
    if topic_size == 0 or topic_size > 249 or end - topic < topic_size + 8:
        return None
    if version < 13 and not _is_ascii(topic, topic_size):
        return None
    # --- One partition and its records.
    at = topic + topic_size
    if version >= 9:
        if at[0] != 2:
            return None
        index = <int32_t> _big32(at + 1)
        at = _after_short_length(at + 5, end, &batch_size)
        if at == NULL or end - at != batch_size + 3 or at[batch_size] | at[batch_size + 1] | at[batch_size + 2]:
            return None
    else:
        if _big32(at) != 1 or end - at < 12:
            return None
        index = <int32_t> _big32(at + 4)
        batch_size = <int32_t> _big32(at + 8)
        at += 12
        if end - at != batch_size:
            return None
    produce = kind.__new__(kind)
    produce.api_version = version
    produce.correlation_id = correlation_id
    produce.acks = acks
    produce.wait_safe = acks == -1
    produce.timeout_ms = timeout_ms
    produce.index = index
    produce.topic = PyBytes_FromStringAndSize(<const char *> topic, topic_size)
    produce.size = batch_size
    produce.batch_start = at - base
    produce.base_offset = produce.end_offset = -1
    produce.pieces = ()
    return produce


cdef bint _is_plain_batch(PlainProduce produce, const unsigned char *at):
    """Whether the batch at `at` is whole, uncompressed, numbered from 0 and as its header says; what it says is kept."""
    cdef Py_ssize_t size = produce.size
    cdef int64_t newest
    if size < _HEADER_BYTES or at[21] | at[22] or _big64(at) != 0 or not _batch_holds(at, size, True):
        return False
    if not _walk(at + _HEADER_BYTES, size - _HEADER_BYTES, <int32_t> _big32(at + 57), False, &newest):
        return False
    if _big64(at + 27) + <uint64_t> newest != _big64(at + 35):
        return False
    produce.last_offset_delta = <int32_t> _big32(at + 23)
    produce.max_timestamp = <int64_t> _big64(at + 35)
    produce.producer_id = <int64_t> _big64(at + 43)
    produce.producer_epoch = <int16_t> (at[51] << 8 | at[52])
    produce.base_sequence = <int32_t> _big32(at + 53)
    return True


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


cdef inline unsigned char *_put_unsigned(unsigned char *at, uint64_t value) noexcept:
    while value > 127:
        at[0] = value | 128
        value >>= 7
        at += 1
    at[0] = value
    return at + 1
