"""What is noted of appended batches is the same in both forms."""

import pytest
from log_helpers import make_batch

from anabranch.log.segment.rolling import noted, noted_pure


@pytest.mark.parametrize("count", [1, 3])
def test_both_forms_note_the_same(count: int) -> None:
    batches = [make_batch(5 + 2 * number, 2, value_bytes=10 * number) for number in range(count)]
    expected = [(len(data), last, timestamp, bytes(data[:17])) for data, _, last, timestamp in batches]
    assert noted(batches) == noted_pure(batches) == expected
    views = [(memoryview(data), base, last, timestamp) for data, base, last, timestamp in batches]
    assert noted(views) == expected
