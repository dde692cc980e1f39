"""The records that every client must bring back byte for byte, and the codecs it must do so with."""

import random
from typing import NamedTuple

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

# Timestamps lie close together and in the recent past: a broker may refuse what is far in the future.
TIMESTAMP_MS_FIRST = 1_700_000_000_123


class Sample(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int = TIMESTAMP_MS_FIRST


def _noise(count: int) -> bytes:
    return random.Random(count).randbytes(count)


_SHAPES: tuple[tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]], ...] = (
    (b"plain", b"value", ()),
    (None, b"no key", ()),
    (b"tombstone", None, ()),
    (None, None, ()),
    (b"", b"", ()),
    (bytes(range(256)), bytes(reversed(range(256))), ()),
    (b"headers", b"v", (("first", b"1"), ("second", b"2"), ("first", b"again"))),
    (b"null header", b"v", (("nothing", None), ("empty", b""), ("", b"no name"))),
    (b"unicode header", b"v", (("schl\u00fcssel-\u9375", bytes(range(256))),)),
    (b"compressible", b"anabranch " * 2_000, ()),
    (b"incompressible", _noise(20_000), (("noise", _noise(300)),)),
)

# Steps of 7 ms, with one step back: clients promise no order of timestamps.
SAMPLES = tuple(
    Sample(key, value, headers, TIMESTAMP_MS_FIRST + (7 * number if number != 3 else -50))
    for number, (key, value, headers) in enumerate(_SHAPES)
)


def with_key_or_value(sample: Sample) -> Sample:
    """For clients that refuse to send a record with neither."""
    return sample._replace(value=b"") if sample.key is None and sample.value is None else sample


def without_null_headers(sample: Sample) -> Sample:
    """For clients that refuse to send a header without a value."""
    return sample._replace(headers=tuple((name, value or b"") for name, value in sample.headers))
