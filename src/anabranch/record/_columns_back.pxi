# --- Columns to the records of a batch; columns.to_batches.built is the twin, and columns.to_batches.Rows has checked the columns.


cdef class Held:
    """Somebody's bytes, which stay where they are as long as this does."""

    cdef Py_buffer view

    def __cinit__(self, source):
        PyObject_GetBuffer(source, &self.view, PyBUF_SIMPLE)

    def __dealloc__(self):
        PyBuffer_Release(&self.view)


cdef struct _Bytes:
    const int32_t *starts
    const int32_t *lengths  # -1: null
    const unsigned char *data


cdef _Bytes _held_bytes(column, list held) except *:
    """A column of bytes, given as (starts, lengths, bytes)."""
    cdef _Bytes found
    cdef Held starts = Held(column[0]), lengths = Held(column[1]), data = Held(column[2])
    held += (starts, lengths, data)
    found.starts, found.lengths = <const int32_t *> starts.view.buf, <const int32_t *> lengths.view.buf
    found.data = <const unsigned char *> data.view.buf
    return found


def encode_records(
    Py_ssize_t first, Py_ssize_t last, Py_ssize_t room, times, offsets, keys, values,
    header_starts, header_counts, header_keys, header_values,
):
    """The records of the rows in [first, last) as one section of at most `room` bytes; all of them are in the columns.

    Times are in milliseconds and count from the first row's, offsets likewise. Whose bytes fit is not asked here: the
    caller has checked the columns.
    """
    cdef list held = []
    cdef Held time_view = Held(times), offset_view = Held(offsets)
    cdef Held start_view = Held(header_starts), count_view = Held(header_counts)
    cdef const int64_t *time = <const int64_t *> time_view.view.buf
    cdef const int64_t *offset = <const int64_t *> offset_view.view.buf
    cdef const int32_t *header_start = <const int32_t *> start_view.view.buf
    cdef const int32_t *header_count = <const int32_t *> count_view.view.buf
    cdef _Bytes key = _held_bytes(keys, held), value = _held_bytes(values, held)
    cdef _Bytes header_key = _held_bytes(header_keys, held), header_value = _held_bytes(header_values, held)
    cdef Memory section = Memory(room)
    cdef unsigned char *at = section.at
    cdef unsigned char *end = section.at + room
    cdef int64_t time_delta, offset_delta
    cdef Py_ssize_t row, header, size
    with nogil:
        for row in range(first, last):
            time_delta = <int64_t> (<uint64_t> time[row] - <uint64_t> time[first])
            offset_delta = offset[row] - offset[first]
            size = 1 + _integer_size(time_delta) + _integer_size(offset_delta) + _integer_size(header_count[row])
            size += _bytes_size(&key, row) + _bytes_size(&value, row)
            for header in range(header_start[row], header_start[row] + header_count[row]):
                size += _bytes_size(&header_key, header) + _bytes_size(&header_value, header)
            if size + _integer_size(size) > end - at:
                at = NULL
                break
            at = _put_integer(at, size)
            at[0] = 0  # Attributes, of which no bit is used.
            at = _put_integer(_put_integer(at + 1, time_delta), offset_delta)
            at = _put_integer(_put_bytes(_put_bytes(at, &key, row), &value, row), header_count[row])
            for header in range(header_start[row], header_start[row] + header_count[row]):
                at = _put_bytes(_put_bytes(at, &header_key, header), &header_value, header)
    if at == NULL:
        raise AssertionError("Records take more room than their columns said.")
    return PyBytes_FromStringAndSize(<const char *> section.at, at - section.at)


cdef inline Py_ssize_t _integer_size(int64_t value) noexcept nogil:
    cdef uint64_t raw = <uint64_t> value << 1 ^ <uint64_t> (value >> 63)
    cdef Py_ssize_t size = 1
    while raw > 127:
        raw >>= 7
        size += 1
    return size


cdef inline Py_ssize_t _bytes_size(const _Bytes *column, Py_ssize_t row) noexcept nogil:
    return _integer_size(column.lengths[row]) + max(column.lengths[row], 0)


cdef inline unsigned char *_put_integer(unsigned char *at, int64_t value) noexcept nogil:
    cdef uint64_t raw = <uint64_t> value << 1 ^ <uint64_t> (value >> 63)
    while raw > 127:
        at[0] = <unsigned char> (raw | 128)
        raw >>= 7
        at += 1
    at[0] = <unsigned char> raw
    return at + 1


cdef inline unsigned char *_put_bytes(unsigned char *at, const _Bytes *column, Py_ssize_t row) noexcept nogil:
    cdef int32_t length = column.lengths[row]
    at = _put_integer(at, length)
    if length <= 0:
        return at
    memcpy(at, column.data + column.starts[row], length)
    return at + length
