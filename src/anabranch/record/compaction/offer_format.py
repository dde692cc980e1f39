"""How a job offers the segments it compacted, and how the broker answers: names and contents of the files.

    <partition folder>/offered/<20-digit base offset>.log   what stays of some neighbouring segments, as batches
    <partition folder>/offered/manifest                     written last, aside and renamed: the offer counts from here
    <partition folder>/offered/outcome                      written by the broker, before it removes the others

Manifest and outcome are state files (`state_file.py`). The manifest names the segments each file was made of by base
offset and size, oldest first and without a gap, and the offset up to which keys were looked at. Whoever reads one
believes nothing: what is not of this form is an OfferRefusedError.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from anabranch.errors import OfferRefusedError
from anabranch.record.state_file import dump_state, load_state
from anabranch.values import Offset

FOLDER = "offered"
MANIFEST = "manifest"
OUTCOME = "outcome"
MANIFEST_BYTES_MAX = 4 * 2**20
_OFFSET_MAX = 2**63 - 1
_ID_CHARACTERS_MAX = 100


class OfferedSource(NamedTuple):
    """One segment that was read."""

    base_offset: Offset
    size_bytes: int


class Offer(NamedTuple):
    id: str
    """Chosen by the job, so that it knows the answer when it sees it."""
    upto: Offset
    groups: Sequence[Sequence[OfferedSource]]
    """Each became one file, named by the base offset of its first segment."""


class Outcome(NamedTuple):
    id: str
    taken: bool
    reason: str
    """Why it was refused; empty if it was taken."""
    bytes_freed: int = 0


def file_name(base_offset: Offset) -> str:
    return f"{base_offset:020d}.log"


def dump_offer(offer: Offer) -> bytes:
    groups = [[list(source) for source in group] for group in offer.groups]
    return dump_state({"id": offer.id, "upto": offer.upto, "groups": groups})


def load_offer(data: bytes) -> Offer:
    value, reason = load_state(data)
    if reason is not None:
        raise OfferRefusedError(f"The manifest holds nothing: {reason}.")
    fields: dict[str, Any] = value if isinstance(value, dict) else {}
    name, upto, groups = fields.get("id"), fields.get("upto", -1), fields.get("groups")
    if not isinstance(name, str) or len(name) > _ID_CHARACTERS_MAX or not _is_count(upto):
        raise OfferRefusedError("The manifest does not say whose offer it is, or up to where.")
    if not isinstance(groups, list) or not groups or not all(_is_group(group) for group in groups):
        raise OfferRefusedError("The manifest does not say which segments were compacted.")
    sources = [[OfferedSource(Offset(base), size) for base, size in group] for group in groups]
    return Offer(name, Offset(upto), sources)


def _is_group(group: Any) -> bool:
    return (
        isinstance(group, list)
        and bool(group)
        and all(isinstance(pair, list) and len(pair) == 2 and all(map(_is_count, pair)) for pair in group)
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _OFFSET_MAX


def dump_outcome(outcome: Outcome) -> bytes:
    return dump_state(outcome._asdict())


def load_outcome(data: bytes) -> Outcome | None:
    """None: no answer of ours."""
    value, _ = load_state(data)
    if not isinstance(value, dict) or set(value) != set(Outcome._fields):
        return None
    return Outcome(**value)
