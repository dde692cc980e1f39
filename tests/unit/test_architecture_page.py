"""ARCHITECTURE.md names every folder of the source, and nothing that is not there."""

import re

from support.doc_pages import ROOT

PAGE = (ROOT / "ARCHITECTURE.md").read_text()
SOURCE = ROOT / "src" / "anabranch"
LINES_MAX = 300


def is_named(folder: str) -> bool:
    """By its path, or, below `broker/`, by its line in the drawing of that folder."""
    short = folder.removeprefix("broker/")
    return bool(
        re.search(
            rf"(?<![\w/]){re.escape(folder)}(?![\w/])|(?<![\w/]){re.escape(short)}(?:/|(?=[`, ]))", PAGE
        )
    )


def test_every_folder_is_named() -> None:
    folders = [
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*")
        if path.is_dir() and path.name != "__pycache__"
    ]
    assert [folder for folder in sorted(folders) if not is_named(folder)] == []


def test_every_named_file_exists() -> None:
    named = re.findall(r"`([a-z_]+(?:/[a-z_0-9]+)+(?:\.py|/)?)`", PAGE)
    assert len(named) > 30
    missing = [name for name in named if not any((base / name).exists() for base in (SOURCE, ROOT))]
    assert missing == []


def test_it_stays_short_enough_to_read() -> None:
    assert PAGE.count("\n") <= LINES_MAX
