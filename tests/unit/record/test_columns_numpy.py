"""What only the numpy form does: headers of many records at once, one of each record at a time."""

import pytest

from anabranch.record.builder import BatchBuilder
from anabranch.record.columns import numpy_decoder as columns_numpy
from support.column_rows import by_hand, outcome, read, rows_by_hand
from support.record_bytes import batch_of, framed, spoiled_sections, varints


def log_of(header_counts: list[int]) -> bytes:
    builder = BatchBuilder()
    for number, count in enumerate(header_counts):
        headers = [
            (f"h{place}" * (place % 40), b"x" * place if place % 3 else None) for place in range(count)
        ]
        builder.add(b"key", b"value %d" % number, headers, timestamp_ms=0)
    return bytes(builder.build())


@pytest.mark.parametrize("rows_min", [1, 10, 64, 10**9])
def test_headers_are_the_same_in_steps_and_one_by_one(monkeypatch: pytest.MonkeyPatch, rows_min: int) -> None:
    log = log_of([number * number % 7 for number in range(200)] + [500, 0, 1])
    monkeypatch.setattr(columns_numpy, "_STEP_ROWS_MIN", rows_min)
    assert read("numpy", log) == rows_by_hand(log)


def test_wrong_fields_are_found_in_steps_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns_numpy, "_STEP_ROWS_MIN", 1)
    for section in spoiled_sections():
        batch = batch_of(section, 2)
        assert outcome("numpy", batch, verify=False) == by_hand(batch), section[:60]


@pytest.mark.parametrize("place", [0, 99, 199])
def test_one_wrong_header_among_many_records_names_their_batch(place: int) -> None:
    good = b"\0" + varints(0, 0, -1, -1, 1, 1) + b"h" + varints(-1)
    wrong = b"\0" + varints(0, 0, -1, -1, 1, -1) + varints(-1)
    bodies = [batch_of(framed(wrong if number == place else good), 1) for number in range(200)]
    for number, batch in enumerate(bodies):
        batch[:8] = number.to_bytes(8, "big")
    found = outcome("numpy", b"".join(bodies))
    assert found[1] == f"The batch at offset {place} cannot be read: A header of a record has no key."
