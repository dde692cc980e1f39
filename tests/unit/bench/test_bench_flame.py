"""Stacks counted and drawn."""

from xml.etree import ElementTree

from bench.flame import draw, own_counts, read_stacks, tree_of, whole_counts, without_stem

LINES = [
    "main (a.py:1);serve (anabranch/s.py:2);send 3",
    "main (a.py:1);serve (anabranch/s.py:2) 1",
    "main (a.py:1);serve (anabranch/s.py:2);parse (anabranch/p.py:9);parse (anabranch/p.py:9) 2",
    "thread (t.py:1);_worker (concurrent/futures/thread.py:69);0x7f (libc.so.6) 50",
]


def test_threads_that_wait_for_work_are_left_out() -> None:
    assert read_stacks(LINES).total() == 6


def test_own_time_is_that_on_top_and_whole_time_counts_a_function_once_per_stack() -> None:
    stacks = read_stacks(LINES)
    assert own_counts(stacks) == {"send": 3, "serve (anabranch/s.py:2)": 1, "parse (anabranch/p.py:9)": 2}
    assert whole_counts(stacks)["parse (anabranch/p.py:9)"] == 2
    assert whole_counts(stacks)["main (a.py:1)"] == 6


def test_the_shared_stem_is_cut() -> None:
    assert without_stem(tree_of(read_stacks(LINES))).name == "serve (anabranch/s.py:2)"


def test_the_drawing_is_well_formed_and_names_every_function() -> None:
    drawing = draw(read_stacks(LINES), "a <title>")
    texts = [element.text for element in ElementTree.fromstring(drawing).iter() if element.text]
    assert "a <title>" in texts
    assert "send: 3 samples, 50.0%" in texts
