"""What brokers tell each other of their branches, as JSON: rows of the branch log, and heads (where each line ends).

What comes from another broker is checked: whatever does not fit is a PeerProtocolError.
"""

import json
from collections.abc import Iterable, Mapping
from typing import NamedTuple
from uuid import UUID

from anabranch.broker.peers.messages import Buffer
from anabranch.errors import CorruptDataError, PeerProtocolError
from anabranch.modes.branch.roles import Head
from anabranch.modes.branch.rows import BranchRow, Lane, Tip, from_json, to_json
from anabranch.values import Offset

Key = tuple[UUID, int]


class Told(NamedTuple):
    rows: list[BranchRow]
    heads: dict[Key, Head]


def encode_told(rows: Iterable[BranchRow], heads: Mapping[Key, Head]) -> bytes:
    told = {
        "rows": [to_json(row) for row in rows],
        "heads": [
            [topic_id.hex, partition, *head.tip, head.reign, head.safe, head.view]
            for (topic_id, partition), head in heads.items()
        ],
    }
    return json.dumps(told, separators=(",", ":")).encode()


def decode_told(data: Buffer) -> Told:
    """Raises PeerProtocolError."""
    try:
        told = json.loads(bytes(data))
        rows = [from_json(entry) for entry in told["rows"]]
        heads = {
            (UUID(hex=topic_id), int(partition)): Head(
                Tip(Lane(int(lane)), Offset(int(end))), Lane(int(reign)), Offset(int(safe)), int(view)
            )
            for topic_id, partition, lane, end, reign, safe, view in told["heads"]
        }
    except (CorruptDataError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise PeerProtocolError(f"what is told of branches does not fit: {error!r}") from None
    return Told(rows, heads)
