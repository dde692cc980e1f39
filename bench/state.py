"""The rounds measured so far, kept on disk after each one, so that an interrupted run goes on where it stopped.

They are worth something only for the code and the settings they were measured with: `key` says which. A state with
another key is put aside aloud, never mixed with new rounds.
"""

import hashlib
import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

Figures = Mapping[str, float]
SUFFIXES = {".py", ".pyx", ".c", ".so"}


def fingerprint(folders: Sequence[Path], without: Collection[str] = ()) -> str:
    """One word for the whole code in some folders, but for some files by name."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.suffix in SUFFIXES and path.name not in without:
                digest.update(str(path.relative_to(folder)).encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@dataclass
class State:
    path: Path
    key: Mapping[str, str]
    rounds: dict[str, dict[str, list[Figures]]] = field(default_factory=dict)
    discarded: str = (
        ""  # Why older rounds were not taken over; empty when they were, or when there were none.
    )

    @classmethod
    def load(cls, path: Path, key: Mapping[str, str]) -> "State":
        if not path.exists():
            return cls(path, key)
        kept = json.loads(path.read_text())
        changed = sorted(name for name in {*key, *kept["key"]} if key.get(name) != kept["key"].get(name))
        if changed:
            return cls(path, key, discarded=f"measured with another {', '.join(changed)}")
        return cls(path, key, kept["rounds"])

    def of(self, row_id: str, side: str) -> list[Figures]:
        return self.rounds.get(row_id, {}).get(side, [])

    def add(self, row_id: str, side: str, figures: Figures) -> None:
        self.rounds.setdefault(row_id, {}).setdefault(side, []).append(figures)
        self._save()

    def forget(self, row_id: str) -> None:
        if self.rounds.pop(row_id, None) is not None:
            self._save()

    def _save(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self.path.with_suffix(".new")
        unfinished.write_text(json.dumps({"key": dict(self.key), "rounds": self.rounds}, indent=1) + "\n")
        os.replace(unfinished, self.path)
