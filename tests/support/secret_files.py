"""Secrets in files, as a node accepts them."""

from pathlib import Path


def write_secret(path: Path, text: str) -> Path:
    """A file that only its owner may read."""
    path.touch(0o600)
    path.write_text(text)
    return path
