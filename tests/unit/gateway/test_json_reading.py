"""JSON of strangers takes no longer than its length."""

import contextlib
import gc

import pytest

from anabranch.gateway.http.json_reading import DIGITS_MAX, read_json


def test_numbers_are_read_up_to_the_limit() -> None:
    digits = "9" * DIGITS_MAX
    assert read_json(f'[{digits}, -{digits[1:]}, 1.5, 0, "{digits}"]') == [
        int(digits),
        -int(digits[1:]),
        1.5,
        0,
        digits,
    ]


def test_number_with_too_many_digits_is_refused_and_text_is_not() -> None:
    digits = "9" * (DIGITS_MAX + 1)
    with pytest.raises(ValueError, match="641 digits is too long"):
        read_json(f'{{"a": [{digits}]}}')
    assert read_json(f'["{digits}", 1, {digits}.5]') == [digits, 1, float(digits + ".5")]


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", "-Infinity", ""])
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - each has its own words.
        read_json(text)


@pytest.mark.parametrize("text", ["[" + "[]," * 30_000 + "[]]", "[" * 100_000, "[" + "0," * 60_000])
def test_cycles_are_looked_for_again_after_a_long_text(text: str) -> None:
    with contextlib.suppress(ValueError, RecursionError):
        read_json(text)
    assert gc.isenabled()
