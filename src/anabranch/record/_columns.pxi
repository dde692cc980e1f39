# --- Record batches to columns; columns.numpy_decoder.NumpyDecoder is the twin. The way back is in _columns_back.pxi.
# --- What is read is bounded as above. What is written has room for the worst a section of its size can hold, which is
# --- made before the section is walked. Memory goes to Arrow as it is, without a copy.

from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport INT32_MAX, INT64_MAX
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memset

cdef enum:
    _KEY = 1
    _VALUE = 2
    _HEADERS = 4
    _CONTROL = 0x20
    _TRANSACTIONAL = 0x10
    _LOG_APPEND_TIME = 0x08
    _RECORD_BYTES_MIN = 7  # With its length.
    _BODY_BYTES_MIN = 6
    _ROOM_MIN = 256

cdef int64_t _MS_MAX = INT64_MAX / 1000
cdef Py_ssize_t _SECTION_BYTES_MAX = <Py_ssize_t> INT32_MAX - 1023


cdef class Memory:
    """Bytes that grow while they are written and then are read through the buffer protocol."""

    cdef unsigned char *at
    cdef Py_ssize_t size, room

    def __cinit__(self, Py_ssize_t room):
        self.room = max(room, _ROOM_MIN)
        self.at = <unsigned char *> malloc(self.room)
        if self.at == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.at)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.at, self.size, 1, flags)

    cdef bint make_room(self, Py_ssize_t size) noexcept nogil:
        """Whether `size` bytes fit, if need be after growing."""
        cdef Py_ssize_t room
        cdef void *moved
        if size <= self.room:
            return True
        room = max(size, self.room + self.room // 2)
        moved = realloc(self.at, room)
        if moved == NULL:
            return False
        self.at = <unsigned char *> moved
        self.room = room
        return True

    cdef object finished(self, Py_ssize_t size):
        """Itself, `size` bytes long, without most of the room it did not need."""
        cdef void *moved
        self.size = size
        if self.room > 2 * max(size, _ROOM_MIN):
            moved = realloc(self.at, max(size, _ROOM_MIN))
            if moved != NULL:
                self.at = <unsigned char *> moved
                self.room = max(size, _ROOM_MIN)
        return self


cdef struct _Sizes:
    Py_ssize_t rows, keys, values, headers, header_keys, header_values
    Py_ssize_t null_keys, null_values, headerless, null_header_values


cdef struct _BatchFacts:
    int64_t base_offset, base_timestamp, max_timestamp, producer_id
    int32_t generation, attributes, last_offset_delta, base_sequence, record_count
    int16_t producer_epoch


cdef class ColumnDecoder:
    """Gathers the rows of batches; `take` gives the memory of their columns."""

    cdef readonly Py_ssize_t size_bytes
    """Of the unpacked records gathered so far."""

    cdef int wanted
    cdef bint verify, transactional, starved
    cdef int64_t start, end
    cdef Py_ssize_t chunk_bytes
    cdef _Sizes now
    cdef Memory offsets, timestamps, timestamp_types, generations, producer_ids, producer_epochs, sequences
    cdef Memory key_bits, key_ends, keys, value_bits, value_ends, values
    cdef Memory header_bits, header_ends, header_key_ends, header_keys
    cdef Memory header_value_bits, header_value_ends, header_values

    def __init__(
        self, names, int64_t start, int64_t end, bint verify, bint transactional,
        Py_ssize_t chunk_bytes, Py_ssize_t data_bytes,
    ):
        self.wanted = ("key" in names) * _KEY | ("value" in names) * _VALUE | ("headers" in names) * _HEADERS
        self.start, self.end = start, end
        self.verify, self.transactional = verify, transactional
        self.chunk_bytes = chunk_bytes
        # A guess at the first chunk: memory that is not written costs nothing, to move what is written does.
        self.now.values = min(data_bytes, chunk_bytes)
        self.now.keys, self.now.rows = self.now.values // 8, self.now.values // 64
        self._begin()

    cdef _begin(self):
        """Empty columns, with the room that those before them needed unless that was unusual."""
        cdef _Sizes before = self.now
        if self.size_bytes > 2 * self.chunk_bytes:
            memset(&before, 0, sizeof(_Sizes))
        cdef Py_ssize_t rows = before.rows
        self.offsets, self.timestamps, self.producer_ids = Memory(8 * rows), Memory(8 * rows), Memory(8 * rows)
        self.timestamp_types, self.generations = Memory(4 * rows), Memory(4 * rows)
        self.sequences, self.producer_epochs = Memory(4 * rows), Memory(2 * rows)
        self.key_bits, self.value_bits, self.header_bits = Memory(rows // 8), Memory(rows // 8), Memory(rows // 8)
        self.key_ends, self.value_ends, self.header_ends = _ends(rows), _ends(rows), _ends(rows)
        self.keys, self.values = Memory(before.keys), Memory(before.values)
        self.header_key_ends, self.header_value_ends = _ends(before.headers), _ends(before.headers)
        self.header_value_bits = Memory(before.headers // 8)
        self.header_keys, self.header_values = Memory(before.header_keys), Memory(before.header_values)
        memset(&self.now, 0, sizeof(_Sizes))
        self.size_bytes = 0

    def fill(self, view, Py_ssize_t position):
        """Takes batches from `position` on while they are plain and fit into the chunk; where the next one begins."""
        cdef Py_buffer buffer
        cdef Py_ssize_t stopped
        PyObject_GetBuffer(view, &buffer, PyBUF_SIMPLE)
        with nogil:
            stopped = self._fill(<const unsigned char *> buffer.buf, buffer.len, position)
        PyBuffer_Release(&buffer)
        return stopped

    cdef Py_ssize_t _fill(self, const unsigned char *data, Py_ssize_t size, Py_ssize_t position) noexcept nogil:
        cdef Py_ssize_t batch_size
        cdef const unsigned char *at
        cdef _BatchFacts facts
        while size - position >= _HEADER_BYTES:
            at = data + position
            batch_size = <Py_ssize_t> <int32_t> _big32(at + 8) + _LOG_OVERHEAD
            if batch_size < _HEADER_BYTES or batch_size > size - position or at[16] != _MAGIC:
                break
            _read_facts(at, &facts)
            if facts.attributes & (_CODEC_MASK | _CONTROL) or (facts.attributes & _TRANSACTIONAL and not self.transactional):
                break
            if not _facts_hold(&facts) or batch_size > _SECTION_BYTES_MAX:
                break
            if facts.base_offset < self.end:
                if self.size_bytes and self.size_bytes + batch_size - _HEADER_BYTES > self.chunk_bytes:
                    break
                if self.verify and crc32c_of(at + _CHECKED_POSITION, batch_size - _CHECKED_POSITION) != _big32(at + 17):
                    break
                if facts.base_offset + facts.last_offset_delta >= self.start:
                    if not self._take_section(at + _HEADER_BYTES, batch_size - _HEADER_BYTES, &facts):
                        break
            position += batch_size
        return position

    def add(self, header, section):
        """Takes the records of one batch; whether they are what they should be."""
        cdef Py_buffer buffer
        cdef _BatchFacts facts
        cdef bint fits
        facts.base_offset, facts.generation, facts.attributes = header[0], header[2], header[5]
        facts.last_offset_delta, facts.base_timestamp, facts.max_timestamp = header[6], header[7], header[8]
        facts.producer_id, facts.producer_epoch, facts.base_sequence = header[9], header[10], header[11]
        facts.record_count = header[12]
        PyObject_GetBuffer(section, &buffer, PyBUF_SIMPLE)
        with nogil:
            fits = _facts_hold(&facts) and buffer.len <= _SECTION_BYTES_MAX and self._take_section(
                <const unsigned char *> buffer.buf, buffer.len, &facts
            )
        PyBuffer_Release(&buffer)
        if self.starved:
            raise MemoryError
        return fits

    cdef bint _take_section(self, const unsigned char *at, Py_ssize_t size, _BatchFacts *facts) noexcept nogil:
        """Whether the section was taken. If not, nothing of it was."""
        cdef _Sizes before = self.now
        if facts.record_count > size // _RECORD_BYTES_MIN:
            return False
        if not self._make_room(facts.record_count, size):
            self.starved = True
            return False
        if not self._take_records(at, size, facts):
            self.now = before
            return False
        self._take_facts(before.rows, facts)
        self.size_bytes += size
        return True

    cdef bint _make_room(self, Py_ssize_t count, Py_ssize_t size) noexcept nogil:
        cdef Py_ssize_t rows = self.now.rows + count
        cdef Py_ssize_t headers = self.now.headers + size // 2
        if not (
            self.offsets.make_room(8 * rows) and self.timestamps.make_room(8 * rows)
            and self.producer_ids.make_room(8 * rows) and self.timestamp_types.make_room(4 * rows)
            and self.generations.make_room(4 * rows) and self.sequences.make_room(4 * rows)
            and self.producer_epochs.make_room(2 * rows)
        ):
            return False
        if not (
            _room_for_bits(self.key_bits, self.now.rows, rows) and self.key_ends.make_room(4 * rows + 4)
            and _room_for_bits(self.value_bits, self.now.rows, rows) and self.value_ends.make_room(4 * rows + 4)
            and _room_for_bits(self.header_bits, self.now.rows, rows) and self.header_ends.make_room(4 * rows + 4)
        ):
            return False
        if self.wanted & _KEY and not self.keys.make_room(self.now.keys + size):
            return False
        if self.wanted & _VALUE and not self.values.make_room(self.now.values + size):
            return False
        if not self.wanted & _HEADERS:
            return True
        return (
            self.header_key_ends.make_room(4 * headers + 4) and self.header_value_ends.make_room(4 * headers + 4)
            and _room_for_bits(self.header_value_bits, self.now.headers, headers)
            and self.header_keys.make_room(self.now.header_keys + size)
            and self.header_values.make_room(self.now.header_values + size)
        )

    cdef bint _take_records(self, const unsigned char *at, Py_ssize_t size, _BatchFacts *facts) noexcept nogil:
        """The walk. No field may end beyond its record, no record beyond the section."""
        cdef const unsigned char *section_end = at + size
        cdef const unsigned char *end
        cdef const unsigned char *key
        cdef const unsigned char *value
        cdef const unsigned char *headers
        cdef int64_t *offsets = <int64_t *> self.offsets.at
        cdef int64_t *timestamps = <int64_t *> self.timestamps.at
        cdef int32_t *key_ends = <int32_t *> self.key_ends.at
        cdef int32_t *value_ends = <int32_t *> self.value_ends.at
        cdef int32_t *header_ends = <int32_t *> self.header_ends.at
        cdef unsigned char *keys = self.keys.at
        cdef unsigned char *values = self.values.at
        cdef bint is_log_append = facts.attributes & _LOG_APPEND_TIME
        cdef bint keys_wanted = self.wanted & _KEY
        cdef bint values_wanted = self.wanted & _VALUE
        cdef bint headers_wanted = self.wanted & _HEADERS
        cdef _Sizes now = self.now
        cdef uint64_t raw, key_raw, value_raw, header_raw
        cdef int64_t delta, delta_before = -1, offset, time
        cdef int32_t number
        for number in range(facts.record_count):
            at = _after_integer(at, section_end, 32, &raw)
            if at == NULL or raw & 1 or raw >> 1 > <uint64_t> (section_end - at) or raw >> 1 < _BODY_BYTES_MIN:
                return False
            end = at + (raw >> 1)
            at = _after_integer(at + 1, end, 64, &raw)  # Past the attributes, of which no bit is used.
            if at == NULL:
                return False
            time = <int64_t> (<uint64_t> facts.base_timestamp + <uint64_t> _signed(raw))
            at = _after_integer(at, end, 32, &raw)
            delta = _signed(raw)
            if at == NULL or delta <= delta_before or delta > facts.last_offset_delta:
                return False
            delta_before = delta
            key = _after_length(at, end, &key_raw)
            if key == NULL:
                return False
            value = _after_length(key + (key_raw >> 1), end, &value_raw)
            if value == NULL:
                return False
            headers = _after_integer(value + (value_raw >> 1), end, 32, &header_raw)
            if headers == NULL or header_raw & 1:
                return False
            offset = facts.base_offset + delta
            if offset < self.start or offset >= self.end:
                if _after_counted_headers(headers, end, header_raw >> 1) != end:
                    return False
                at = end
                continue
            offsets[now.rows] = offset
            timestamps[now.rows] = _microseconds(facts.max_timestamp if is_log_append else time)
            if key_raw & 1:
                _clear_bit(self.key_bits.at, now.rows)
                now.null_keys += 1
            elif keys_wanted:
                memcpy(keys + now.keys, key, key_raw >> 1)
                now.keys += key_raw >> 1
            if value_raw & 1:
                _clear_bit(self.value_bits.at, now.rows)
                now.null_values += 1
            elif values_wanted:
                memcpy(values + now.values, value, value_raw >> 1)
                now.values += value_raw >> 1
            if header_raw == 0:
                at = headers
                _clear_bit(self.header_bits.at, now.rows)
                now.headerless += 1
            elif headers_wanted:
                at = self._take_headers(headers, end, header_raw >> 1, &now)
            else:
                at = _after_counted_headers(headers, end, header_raw >> 1)
            if at != end:
                return False
            now.rows += 1
            key_ends[now.rows] = <int32_t> now.keys
            value_ends[now.rows] = <int32_t> now.values
            header_ends[now.rows] = <int32_t> now.headers
        self.now = now
        return at == section_end

    cdef const unsigned char *_take_headers(
        self, const unsigned char *at, const unsigned char *end, uint64_t count, _Sizes *now
    ) noexcept nogil:
        """Past the headers of one record; each takes at least two bytes, so that a false count soon finds the end."""
        cdef int32_t *key_ends = <int32_t *> self.header_key_ends.at
        cdef int32_t *value_ends = <int32_t *> self.header_value_ends.at
        cdef uint64_t raw, number
        for number in range(count):
            at = _after_length(at, end, &raw)
            if at == NULL or raw & 1:
                return NULL
            memcpy(self.header_keys.at + now.header_keys, at, raw >> 1)
            now.header_keys += raw >> 1
            at = _after_length(at + (raw >> 1), end, &raw)
            if at == NULL:
                return NULL
            if raw & 1:
                _clear_bit(self.header_value_bits.at, now.headers)
                now.null_header_values += 1
            else:
                memcpy(self.header_values.at + now.header_values, at, raw >> 1)
                now.header_values += raw >> 1
                at += raw >> 1
            now.headers += 1
            key_ends[now.headers] = <int32_t> now.header_keys
            value_ends[now.headers] = <int32_t> now.header_values
        return at

    cdef void _take_facts(self, Py_ssize_t first, _BatchFacts *facts) noexcept nogil:
        """What all rows of a batch share, and the sequences that follow from it."""
        cdef int64_t *offsets = <int64_t *> self.offsets.at
        cdef int32_t *types = <int32_t *> self.timestamp_types.at
        cdef int32_t *generations = <int32_t *> self.generations.at
        cdef int64_t *ids = <int64_t *> self.producer_ids.at
        cdef int16_t *epochs = <int16_t *> self.producer_epochs.at
        cdef int32_t *sequences = <int32_t *> self.sequences.at
        cdef int32_t kind = (facts.attributes & _LOG_APPEND_TIME) != 0
        cdef Py_ssize_t row
        for row in range(first, self.now.rows):
            types[row] = kind
            generations[row] = facts.generation
            ids[row] = facts.producer_id
            epochs[row] = facts.producer_epoch
        if facts.base_sequence < 0:
            for row in range(first, self.now.rows):
                sequences[row] = -1
        else:
            for row in range(first, self.now.rows):
                sequences[row] = <int32_t> ((facts.base_sequence + (offsets[row] - facts.base_offset)) & INT32_MAX)

    def take(self):
        """(rows, headers, the memory of each column by name) gathered so far; begins anew.

        A column of numbers is its memory; one of bytes is (bits of what is not null or None, ends, bytes); the headers
        are (bits or None, ends, keys, values).
        """
        cdef _Sizes now = self.now
        cdef Py_ssize_t rows = now.rows
        found = {
            "offset": self.offsets.finished(8 * rows),
            "timestamp": self.timestamps.finished(8 * rows),
            "timestampType": self.timestamp_types.finished(4 * rows),
            "_generation": self.generations.finished(4 * rows),
            "producerId": self.producer_ids.finished(8 * rows),
            "producerEpoch": self.producer_epochs.finished(2 * rows),
            "sequence": self.sequences.finished(4 * rows),
            "key": _bytes_column(self.key_bits, now.null_keys, self.key_ends, rows, self.keys, now.keys),
            "value": _bytes_column(self.value_bits, now.null_values, self.value_ends, rows, self.values, now.values),
            "headers": (
                self.header_bits.finished((rows + 7) // 8) if now.headerless else None,
                self.header_ends.finished(4 * rows + 4),
                _bytes_column(None, 0, self.header_key_ends, now.headers, self.header_keys, now.header_keys),
                _bytes_column(
                    self.header_value_bits, now.null_header_values,
                    self.header_value_ends, now.headers, self.header_values, now.header_values,
                ),
            ),
        }
        self._begin()
        return rows, now.headers, found


cdef Memory _ends(Py_ssize_t count):
    """Where each of `count` things is going to end, behind where the first begins."""
    cdef Memory ends = Memory(4 * count + 4)
    (<int32_t *> ends.at)[0] = 0
    return ends


cdef _bytes_column(Memory bits, Py_ssize_t nulls, Memory ends, Py_ssize_t count, Memory data, Py_ssize_t size):
    return (
        bits.finished((count + 7) // 8) if nulls else None, ends.finished(4 * count + 4), data.finished(size)
    )


cdef inline bint _room_for_bits(Memory bits, Py_ssize_t used, Py_ssize_t count) noexcept nogil:
    """Room for `count` bits of which those behind `used` are set."""
    cdef Py_ssize_t first = (used + 7) // 8
    if not bits.make_room((count + 7) // 8):
        return False
    if count > used:
        if used & 7:
            bits.at[used >> 3] |= <unsigned char> (0xFF << (used & 7))
        memset(bits.at + first, 0xFF, (count + 7) // 8 - first)
    return True


cdef inline void _clear_bit(unsigned char *bits, Py_ssize_t place) noexcept nogil:
    bits[place >> 3] &= <unsigned char> ~(1 << (place & 7))


cdef inline int64_t _microseconds(int64_t milliseconds) noexcept nogil:
    """What does not fit becomes the furthest time that does."""
    return 1000 * (_MS_MAX if milliseconds > _MS_MAX else -_MS_MAX if milliseconds < -_MS_MAX else milliseconds)


cdef inline const unsigned char *_after_length(
    const unsigned char *at, const unsigned char *end, uint64_t *raw
) noexcept nogil:
    """Past the length of something that fits; null has the raw length 1, half of which is nothing."""
    at = _after_integer(at, end, 32, raw)
    if at == NULL or (raw[0] & 1 and raw[0] != 1) or raw[0] >> 1 > <uint64_t> (end - at):
        return NULL
    return at


cdef inline const unsigned char *_after_counted_headers(
    const unsigned char *at, const unsigned char *end, uint64_t count
) noexcept nogil:
    cdef uint64_t number
    for number in range(count):
        at = _after_bytes(at, end, True)
        if at == NULL:
            return NULL
        at = _after_bytes(at, end, False)
        if at == NULL:
            return NULL
    return at


cdef inline void _read_facts(const unsigned char *at, _BatchFacts *facts) noexcept nogil:
    facts.base_offset = <int64_t> _big64(at)
    facts.generation = <int32_t> _big32(at + 12)
    facts.attributes = at[21] << 8 | at[22]
    facts.last_offset_delta = <int32_t> _big32(at + 23)
    facts.base_timestamp = <int64_t> _big64(at + 27)
    facts.max_timestamp = <int64_t> _big64(at + 35)
    facts.producer_id = <int64_t> _big64(at + 43)
    facts.producer_epoch = <int16_t> (at[51] << 8 | at[52])
    facts.base_sequence = <int32_t> _big32(at + 53)
    facts.record_count = <int32_t> _big32(at + 57)


cdef inline bint _facts_hold(const _BatchFacts *facts) noexcept nogil:
    return (
        0 <= facts.record_count <= <int64_t> facts.last_offset_delta + 1
        and 0 <= facts.base_offset <= INT64_MAX - max(facts.last_offset_delta, 0)
    )
