"""Spoiled bytes as columns: both forms say what the careful reader says, and touch nothing outside of the bytes.

That nothing is read beyond an end is shown by bytes next to pages which may not be touched: a stray read ends the
process.
"""

import gc
import sys
import threading
from collections.abc import Iterator
from itertools import islice
from random import Random
from struct import pack_into
from time import time_ns

import pyarrow as pa
import pytest

from anabranch.errors import AnabranchError
from anabranch.record.batch import HEADER_BYTES, batch_spans, read_header, seal
from anabranch.record.builder import BatchBuilder
from anabranch.record.columns.columns import columns
from anabranch.record.compression import Codec
from support.column_rows import (
    FORMS,
    Row,
    arrow_batches,
    by_hand,
    form_in_use,
    outcome,
    read,
    rows,
    rows_by_hand,
)
from support.fenced import Fenced
from support.mutations import MUTATIONS, spoil_a_batch
from support.record_bytes import batch_of, framed, spoiled_sections, varints

pytestmark = pytest.mark.parametrize("form", FORMS)


def test_records_with_every_kind_of_wrong_field_are_judged_as_by_the_careful_reader(form: str) -> None:
    for section in spoiled_sections():
        for count in (1, 2, 3):
            batch = batch_of(section, count)
            assert outcome(form, batch, verify=False) == by_hand(batch), section[:60]


@pytest.mark.parametrize("deltas", [(0, 0), (1, 0), (0, 2), (0, 7), (5, 6), (-1, 0), (0, 1)])
def test_deltas_must_grow_and_stay_within_the_batch(form: str, deltas: tuple[int, int]) -> None:
    payload = b"".join(framed(b"\0" + varints(0, delta, 0, 0, 0)) for delta in deltas)
    for last_offset_delta in (1, 6):
        batch = batch_of(payload, 2, last_offset_delta)
        assert outcome(form, batch) == by_hand(batch)


def test_a_delta_that_follows_in_another_batch_may_be_small(form: str) -> None:
    one = batch_of(b"".join(framed(b"\0" + varints(0, delta, 0, 0, 0)) for delta in (0, 1)), 2)
    assert len(read(form, bytes(one) * 3)) == 6


def sealed_again(batch: bytes, rng: Random) -> bytearray:
    """One byte behind the checksum is changed, and the checksum made right."""
    spoiled = bytearray(batch)
    place = rng.randrange(rng.choice((21, HEADER_BYTES)), len(batch))
    spoiled[place] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
    seal(spoiled)
    return spoiled


def sample(codec: int = 0, count: int = 5) -> bytes:
    builder = BatchBuilder(100, codec, producer_id=1, producer_epoch=1, base_sequence=0)
    for number in range(count):
        headers = [("h", b"1"), ("ü", None)] if number % 2 else []
        builder.add(
            b"k" * number or None, b"v" * 70 if number % 3 else None, headers, timestamp_ms=number * 100
        )
    return bytes(builder.build())


@pytest.mark.parametrize("codec", list(Codec))
def test_a_batch_that_was_changed_and_summed_again_is_judged_as_by_the_careful_reader(
    form: str, codec: int
) -> None:
    seed = time_ns()
    rng = Random(seed)
    good = sample(codec)
    refused = 0
    for _ in range(500):
        batch = sealed_again(good, rng)
        if read_header(batch).codec > Codec.ZSTD:
            continue
        found, expected = outcome(form, batch), by_hand(batch)
        # What a count alone gives away is said before the records are looked at.
        told_by_count = isinstance(found, tuple) and "does not fit below" in found[1]
        assert found == expected or told_by_count, (seed, batch.hex())
        refused += isinstance(found, tuple)
    assert refused, seed


def test_a_spoiled_log_gives_rows_or_one_of_our_errors(form: str) -> None:
    seed = time_ns()
    rng = Random(seed)
    log = sample() + sample(Codec.LZ4) + sample()
    good = rows_by_hand(log)
    for _ in range(1000):
        # To spoil a batch and make its checksum right would give it other contents.
        spoiled = rng.choice([way for way in MUTATIONS if way is not spoil_a_batch])(rng, log, [log])
        found = arrow_batches(form, spoiled, aborted=rng.choice([(), [(1, 50)]]))
        taken, complaint = _as_far_as_it_goes(found)
        assert "The batch at offset" in complaint, (seed, complaint)
        # The checksum leaves the first 17 bytes out: base offset and generation may have been changed unnoticed.
        contents = [row[:3] + row[4:6] for row in good]
        assert all(row[:3] + row[4:6] in contents for row in taken), seed


def _as_far_as_it_goes(found: Iterator[pa.RecordBatch]) -> tuple[list[Row], str]:
    taken: list[Row] = []
    try:
        for batch in found:
            taken += rows([batch])
    except AnabranchError as error:
        return taken, str(error)
    return taken, "The batch at offset ... was not there."


FENCED = Fenced()


def test_no_batch_is_read_beyond_its_buffer(form: str) -> None:
    batch = sample()
    for end in range(len(batch) + 1):
        for view in FENCED.at_both_ends(batch[:end]):
            assert len(outcome(form, view)) == (5 if end == len(batch) else 0)


def test_no_section_is_read_beyond_its_end(form: str) -> None:
    """A section that is cut, in a batch that ends with it, and that with the page."""
    for section in (sample()[HEADER_BYTES:], *islice(spoiled_sections(), 0, None, 11)):
        for end in {*range(len(section) - 4, len(section) + 1), *range(0, 60, 9)}:
            batch = batch_of(section[: max(end, 0)], 2)
            for view in FENCED.at_both_ends(bytes(batch)):
                assert outcome(form, view) == by_hand(batch)


def test_no_spoiled_log_is_read_beyond_its_buffer(form: str) -> None:
    seed = time_ns()
    rng = Random(seed)
    log = sample() + sample()
    for number in range(700):
        spoiled = rng.choice(MUTATIONS)(rng, log, [log])[: Fenced.PAGE]
        for view in FENCED.at_both_ends(spoiled):
            assert outcome(form, view, verify=False) is not None, (seed, number)


def test_lengths_that_lie_about_the_batch_are_not_followed(form: str) -> None:
    first = len(sample())
    for length in (-(2**31), -13, -12, -1, 0, 1, 48, 49, 2**31 - 1):
        log = bytearray(sample() * 2)
        pack_into(">i", log, first + 8, length)
        for view in FENCED.at_both_ends(bytes(log)):
            found = outcome(form, view)
            assert isinstance(found, tuple) or len(found) == 5, length


def test_every_buffer_is_given_back(form: str) -> None:
    """A bytearray that somebody still looks at cannot grow; an error must not keep it either."""
    bad = bytearray(sample())
    bad[-1] ^= 1
    for log in (bytearray(sample()), bytearray(sample(Codec.LZ4)), bad):
        before = sys.getrefcount(log)
        outcome(form, log)
        gc.collect()
        assert sys.getrefcount(log) == before
        log.append(0)


def test_threads_may_read_the_same_bytes(form: str) -> None:
    log = b"".join(sample(codec) for codec in Codec) * 50
    expected = rows_by_hand(log)
    found: list[bool] = []

    def work() -> None:
        for _ in range(3):
            found.append(rows(columns(log)) == expected)

    threads = [threading.Thread(target=work) for _ in range(3)]
    with form_in_use(form):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [True] * 9


def test_spans_of_a_log_agree_with_its_rows(form: str) -> None:
    log = sample() * 3
    assert len(read(form, log)) == 5 * len(list(batch_spans(log)))
