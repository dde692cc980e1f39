"""Who a pipeline is: a number in its checkpoint folder, and what it took over when it began.

A batch's number means something only together with the checkpoint it was counted in. The table remembers the number of
the pipeline along with the batch's; a pipeline whose checkpoint was lost gets a new one, goes on from the offsets of
the table's last commit, and from its first commit on the old one may no longer write.
"""

import json
import secrets
from dataclasses import dataclass, replace

from anabranch.errors import TableError
from anabranch.pipeline.lake.change import SourceState
from anabranch.pipeline.lake.formats.storage import read_text, write_first_text, write_text

FILE = "anabranch.json"


@dataclass(frozen=True)
class Identity:
    owner: int
    predecessor: SourceState | None = None
    """The state of the table that this pipeline took over, if it did."""
    has_written: bool = False
    """Has it committed anything yet?"""
    begun: SourceState | None = None
    """What a table would say of the batches before its first row: as long as there is none, nothing is committed."""

    @property
    def knows_a_table(self) -> bool:
        """Is there a table that has something of this pipeline, or had when it began?"""
        return self.has_written or self.predecessor is not None

    def may_follow(self, state: SourceState | None) -> bool:
        """Is the table in a state that this pipeline may add to?"""
        if state is None or state.owner == self.owner:
            return True
        before = self.predecessor
        return before is not None and (before.owner, before.batch) == (state.owner, state.batch)


def identify(checkpoint: str, state: SourceState | None) -> tuple[Identity, bool]:
    """The pipeline of this checkpoint folder, and whether it is new."""
    address = f"{checkpoint}/{FILE}"
    text = read_text(address)
    if text is None:
        fresh = Identity(secrets.randbits(62), state)
        return _read(write_first_text(address, _text(fresh)), address), True
    identity = _read(text, address)
    if state is None and identity.knows_a_table:
        raise TableError(
            f"The checkpoint {checkpoint} belongs to a table that is not there any more, or has lost all its batches. "
            "Remove the checkpoint to fill a new table from the start, or bring the table back."
        )
    return identity, False


def with_a_commit(checkpoint: str, identity: Identity) -> Identity:
    """Remember that there is a table by now; a change only with the first commit."""
    if identity.has_written:
        return identity
    return _changed(checkpoint, replace(identity, has_written=True, begun=None))


def with_a_beginning(checkpoint: str, identity: Identity, state: SourceState) -> Identity:
    """Remember a batch that no table could take."""
    return _changed(checkpoint, replace(identity, begun=state))


def _changed(checkpoint: str, identity: Identity) -> Identity:
    write_text(f"{checkpoint}/{FILE}", _text(identity))
    return identity


def _text(identity: Identity) -> str:
    return json.dumps(
        {
            "owner": identity.owner,
            "predecessor": _plain(identity.predecessor),
            "has_written": identity.has_written,
            "begun": _plain(identity.begun),
        }
    )


def _plain(state: SourceState | None) -> object:
    return None if state is None else json.loads(state.to_json())


def _state(plain: object) -> SourceState | None:
    return None if plain is None else SourceState.from_json(json.dumps(plain))


def _read(text: str, address: str) -> Identity:
    try:
        value = json.loads(text)
        return Identity(
            int(value["owner"]),
            _state(value["predecessor"]),
            bool(value["has_written"]),
            _state(value.get("begun")),  # Older versions did not keep it.
        )
    except (ValueError, KeyError, TypeError) as error:
        raise TableError(
            f"{address} cannot be read: remove the checkpoint, the table knows how far it came."
        ) from error
