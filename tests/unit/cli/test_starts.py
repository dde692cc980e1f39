"""Where to begin, as people write it."""

import pytest

from anabranch.cli.records.consume import begin_offset
from anabranch.cli.records.starts import Kind, Start, parse_start

NOW_MS = 1_800_000_000_000


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("beginning", Start(Kind.BEGINNING)),
        ("earliest", Start(Kind.BEGINNING)),
        ("end", Start(Kind.END)),
        ("latest", Start(Kind.END)),
        ("0", Start(Kind.OFFSET, 0)),
        ("42", Start(Kind.OFFSET, 42)),
        ("-10", Start(Kind.LAST, 10)),
        ("@1700000000000", Start(Kind.TIME, 1_700_000_000_000)),
        ("90s", Start(Kind.TIME, NOW_MS - 90_000)),
        ("15m", Start(Kind.TIME, NOW_MS - 900_000)),
        ("2h", Start(Kind.TIME, NOW_MS - 7_200_000)),
        ("1d", Start(Kind.TIME, NOW_MS - 86_400_000)),
        ("99999d", Start(Kind.TIME, 0)),
        ("1970-01-01T00:00:01.500Z", Start(Kind.TIME, 1500)),
        ("1970-01-01T01:00:01+01:00", Start(Kind.TIME, 1000)),
    ],
)
def test_place_to_begin_is_read_as_people_write_it(text, wanted):
    assert parse_start(text, NOW_MS) == wanted


@pytest.mark.parametrize("text", ["", "soon", "1.5", "--1", "-", "@", "5x", "٤٢", "99999999999999999999"])
def test_what_is_no_place_is_refused_with_what_may_be_written(text):
    with pytest.raises(ValueError, match="no place to begin"):
        parse_start(text, NOW_MS)


@pytest.mark.parametrize(
    ("start", "wanted"),
    [
        (Start(Kind.BEGINNING), 10),
        (Start(Kind.END), 20),
        (Start(Kind.OFFSET, 15), 15),
        (Start(Kind.OFFSET, 3), 10),
        (Start(Kind.OFFSET, 99), 20),
        (Start(Kind.LAST, 4), 16),
        (Start(Kind.LAST, 99), 10),
    ],
)
def test_beginning_stays_within_what_is_there(start, wanted):
    assert begin_offset(start, first=10, end=20) == wanted
