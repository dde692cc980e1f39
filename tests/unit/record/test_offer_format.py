"""Manifest and outcome of an offer: there and back, and nothing malformed is believed."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.errors import OfferRefusedError
from anabranch.record.compaction.offer_format import (
    Offer,
    OfferedSource,
    Outcome,
    dump_offer,
    dump_outcome,
    file_name,
    load_offer,
    load_outcome,
)
from anabranch.record.state_file import dump_state
from anabranch.values import Offset

OFFER = Offer("x", Offset(9), [[OfferedSource(Offset(0), 10), OfferedSource(Offset(5), 7)]])
GOOD: dict[str, Any] = {"id": "x", "upto": 9, "groups": [[[0, 10], [5, 7]]]}


def test_an_offer_survives_the_way_to_its_file_and_back() -> None:
    assert load_offer(dump_offer(OFFER)) == OFFER == load_offer(dump_state(GOOD))


def test_files_are_named_like_segments() -> None:
    assert file_name(Offset(42)) == "00000000000000000042.log"


@pytest.mark.parametrize(
    "changes",
    [
        {"id": 7},
        {"id": "x" * 101},
        {"upto": -1},
        {"upto": 2**63},
        {"upto": "9"},
        {"upto": True},
        {"groups": []},
        {"groups": {}},
        {"groups": [[]]},
        {"groups": [7]},
        {"groups": [[7]]},
        {"groups": [[[0]]]},
        {"groups": [[[0, 1, 2]]]},
        {"groups": [[[0, -1]]]},
        {"groups": [[["../../etc", 1]]]},
        {"groups": [[[0.0, 1]]]},
    ],
)
def test_a_manifest_of_another_form_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(OfferRefusedError):
        load_offer(dump_state({**GOOD, **changes}))


@pytest.mark.parametrize("value", [None, [], "text", 7, {}])
def test_a_manifest_that_is_no_table_is_refused(value: Any) -> None:
    with pytest.raises(OfferRefusedError):
        load_offer(dump_state(value))


@given(st.binary(max_size=80))
def test_bytes_that_are_no_state_file_are_refused(data: bytes) -> None:
    with pytest.raises(OfferRefusedError):
        load_offer(data)


def test_an_outcome_survives_the_way_to_its_file_and_back() -> None:
    outcome = Outcome("x", False, "because", 7)
    assert load_outcome(dump_outcome(outcome)) == outcome
    assert load_outcome(dump_state({"id": "x"})) is None
    assert load_outcome(b"torn") is None
