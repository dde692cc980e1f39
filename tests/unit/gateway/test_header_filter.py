"""Filters on headers: what they let through, and what is no filter."""

import pytest

from anabranch.errors import InvalidRequestError
from anabranch.gateway.read.header_filter import CONDITIONS_MAX, DEPTH_MAX, VALUES_MAX, header_filter

ORDER = (("kind", b"order"), ("country", b"de"))
BILL = (("kind", b"bill"), ("empty", None))
TWICE = (("kind", b"bill"), ("kind", b"order"))


def chosen(given: object) -> list[str]:
    matches = header_filter(given).matches
    named = {"order": ORDER, "bill": BILL, "twice": TWICE, "bare": ()}
    return [name for name, headers in named.items() if matches(headers)]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"header": "kind", "equals": "order"}, ["order", "twice"]),
        ({"header": "empty", "equals": None}, ["bill"]),
        ({"header": "kind", "one_of": ["order", "card"]}, ["order", "twice"]),
        ({"header": "kind", "prefix": "bi"}, ["bill", "twice"]),
        ({"header": "empty", "prefix": ""}, []),
        ({"header": "country", "exists": True}, ["order"]),
        ({"header": "kind", "exists": False}, ["bare"]),
        ({"not": {"header": "kind", "equals": "order"}}, ["bill", "bare"]),
        ({"and": [{"header": "kind", "equals": "order"}, {"header": "country", "equals": "de"}]}, ["order"]),
        (
            {"or": [{"header": "country", "exists": True}, {"header": "empty", "exists": True}]},
            ["order", "bill"],
        ),
    ],
)
def test_filter_lets_through_what_it_asks_for(given: object, expected: list[str]) -> None:
    assert chosen(given) == expected


def test_equal_filters_are_known_by_the_same_text() -> None:
    one = header_filter({"header": "kind", "equals": "order"})
    other = header_filter({"equals": "order", "header": "kind"})
    assert one.text == other.text


def nested(depth: int) -> object:
    given: object = {"header": "kind", "exists": True}
    for _ in range(depth):
        given = {"not": given}
    return given


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ([], "filter is not an object"),
        ({}, "filter needs"),
        ({"header": 1, "equals": "x"}, "filter.header"),
        ({"header": "kind"}, "exactly one test"),
        ({"header": "kind", "equals": "x", "prefix": "y"}, "exactly one test"),
        ({"header": "kind", "regex": ".*"}, "exactly one test"),
        ({"header": "kind", "equals": 1}, "filter.equals"),
        ({"header": "kind", "equals": "\ud800"}, "half a character"),
        ({"header": "kind", "prefix": None}, "filter.prefix"),
        ({"header": "kind", "exists": "yes"}, "filter.exists"),
        ({"header": "kind", "one_of": []}, "filter.one_of"),
        ({"header": "kind", "one_of": ["a", 2]}, r"filter.one_of\[1\]"),
        ({"header": "kind", "one_of": ["a"] * (VALUES_MAX + 1)}, "filter.one_of"),
        ({"and": []}, "filter.and"),
        ({"or": [{"header": "kind", "exists": True}, {"and": 1}]}, r"filter.or\[1\].and"),
        (nested(DEPTH_MAX), "nested deeper"),
        ({"and": [{"header": "kind", "exists": True}] * CONDITIONS_MAX}, "more than"),
    ],
)
def test_what_is_no_filter_is_refused_by_its_place(given: object, place: str) -> None:
    with pytest.raises(InvalidRequestError, match=place):
        header_filter(given)


def test_name_that_is_not_utf8_is_asked_for_in_base64() -> None:
    wanted = header_filter({"header": {"base64": "//4="}, "equals": "held"})
    assert wanted.matches((("\udcff\udcfe", b"held"),))
    assert not wanted.matches((("kind", b"held"),))


@pytest.mark.parametrize("name", ["\udcff\udcfe", {"base64": "?"}, {"base64": 1}, {}, None])
def test_what_is_no_name_is_refused(name: object) -> None:
    with pytest.raises(InvalidRequestError, match=r"filter\.header"):
        header_filter({"header": name, "exists": True})
