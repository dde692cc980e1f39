"""Rows in mode object: how they are chosen, and the stores they are measured with."""

import os
from urllib.request import Request, urlopen

import pytest
from bench.rows import OBJECT_ROWS, chosen
from bench.stores import CREDENTIALS, slow_store


def test_object_rows_are_a_set_of_their_own_and_part_of_all() -> None:
    ids = [row.id for row in OBJECT_ROWS]
    assert [row.id for row in chosen(["object"])] == ids
    assert set(ids) <= {row.id for row in chosen(["all"])}
    assert not set(ids) & {row.id for row in chosen(["quick"])}


def test_a_slow_store_counts_what_it_is_asked_for() -> None:
    with slow_store(put_ms=0) as store:
        _, url, *_ = store.words({})
        endpoint = url.partition("endpoint=")[2]
        before = store.counts()
        urlopen(Request(f"{endpoint}/bench/a", b"x", method="PUT")).close()
        for _ in range(2):
            urlopen(f"{endpoint}/bench/a").close()
        counts = store.counts().since(before)
    assert (counts.puts, counts.gets) == (1, 2)


def test_credentials_are_in_the_environment_for_the_time_of_the_store_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept, absent, *_ = CREDENTIALS
    monkeypatch.setenv(kept, "mine")
    monkeypatch.delenv(absent, raising=False)
    with slow_store(put_ms=0):
        assert {name: os.environ[name] for name in CREDENTIALS} == CREDENTIALS
    assert os.environ[kept] == "mine"
    assert absent not in os.environ
