# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False
"""The hot loops of this room, compiled. Each function has a pure twin with the same meaning:

    crc32c          crc32c.crc32c_pure
    check_records   record_check.check_records_pure
    read_header     batch.read_header_pure
    check_batch     batch.check_batch_pure

`form` says which of the two runs; the same tests run over both, and some compare them with each other. What is wrong
with refused bytes is said in one place: a function here that finds anything amiss asks its twin, which raises.

Bytes are read in place through the buffer protocol, by hand because that costs a tenth of a typed memoryview, and
never outside [0, length) whatever they say. From `_LONG_BYTES` on, other threads run meanwhile.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport INT64_MIN, int16_t, int32_t, int64_t, uint32_t, uint64_t


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
    _LONG_BYTES = 65536  # Giving up the lock and taking it again costs as much as summing 2 KB.
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
