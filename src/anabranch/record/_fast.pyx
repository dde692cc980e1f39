# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False
"""The hot loops of this room, compiled. Each function here has a pure twin with the same meaning:

    crc32c          crc32c.crc32c_pure

`form` says which of the two runs; the same tests run over both, and some compare them with each other. Bytes are read
in place through the buffer protocol, by hand because that costs a tenth of a typed memoryview, and never outside
[0, length) whatever they say. From `_LONG_BYTES` on, other threads run meanwhile.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint32_t


cdef extern from "_crc32c.h" nogil:
    void crc32c_prepare()
    uint32_t crc32c_of(const unsigned char *at, size_t size)


cdef Py_ssize_t _LONG_BYTES = 65536  # Giving up the lock and taking it again costs as much as summing 2 KB.

crc32c_prepare()


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
