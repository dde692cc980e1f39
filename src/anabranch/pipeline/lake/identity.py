"""Who a pipeline is: a number in its checkpoint folder, and what it took over when it began.

A batch's number means something only together with the checkpoint it was counted in. The table remembers the number of
the pipeline along with the batch's; a pipeline whose checkpoint was lost gets a new one, goes on from the offsets of
the table's last commit, and from its first commit on the old one may no longer write.
"""

import json
import secrets
from dataclasses import dataclass

from anabranch.errors import TableError
from anabranch.pipeline.lake.change import SourceState
from anabranch.pipeline.lake.storage import listed, read_text, write_text

FILE = "anabranch.json"


@dataclass(frozen=True)
class Identity:
    owner: int
    predecessor: SourceState | None = None
    """The state of the table that this pipeline took over, if it did."""

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
    if text is not None:
        identity = _read(text, address)
        if state is None and _has_committed(checkpoint):
            raise TableError(
                f"The checkpoint {checkpoint} has seen batches committed to a table that is not there any more. "
                "Remove the checkpoint to fill a new table from the start, or bring the table back."
            )
        return identity, False
    identity = Identity(secrets.randbits(62), state)
    before = None if state is None else json.loads(state.to_json())
    write_text(address, json.dumps({"owner": identity.owner, "predecessor": before}))
    return identity, True


def _read(text: str, address: str) -> Identity:
    try:
        value = json.loads(text)
        before = value["predecessor"]
        return Identity(
            int(value["owner"]), None if before is None else SourceState.from_json(json.dumps(before))
        )
    except (ValueError, KeyError, TypeError) as error:
        raise TableError(
            f"{address} cannot be read: remove the checkpoint, the table knows how far it came."
        ) from error


def _has_committed(checkpoint: str) -> bool:
    return any(not found.path.rsplit("/", 1)[-1].startswith(".") for found in listed(f"{checkpoint}/commits"))
