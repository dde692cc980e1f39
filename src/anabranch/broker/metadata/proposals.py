"""Entries that any broker may have the metadata quorum agree on: each is checked when it is applied and changes nothing
if it does not fit then, so it may be asked for without a lock, by many at once, and again when its fate is not known.

The leader takes them as they are; another broker asks it (`ProposeEntry`). What comes from another broker is looked at
first: an entry that cannot be read would stop every member of the quorum.
"""

from typing import TYPE_CHECKING
from uuid import UUID

from anabranch.broker.metadata.metadata_log import MetadataLog
from anabranch.cluster.metadata.entries import decode_entry, encode_entry
from anabranch.cluster.objects.entries import (
    Entry,
    check_commits,
    check_import,
    check_replacements,
    starts_of,
)
from anabranch.errors import CorruptDataError, InvalidRequestError, NotControllerError
from anabranch.values import BrokerId, Offset

if TYPE_CHECKING:
    from anabranch.broker.peers.messages import Proposed, ProposeEntry
    from anabranch.broker.peers.peers import Peers

ASK_MS_MAX = 5000
PROPOSAL_BYTES_MAX = 16 * 2**20


class Proposals:
    """How this broker proposes, wherever the leader is."""

    def __init__(self, metadata: MetadataLog, peers: "Peers | None") -> None:
        self._metadata = metadata
        self._peers = peers

    async def propose(self, entry: Entry) -> Offset:
        """Agreed on when this returns, and applied at the leader, though perhaps not here yet. Raises
        NotControllerError, QuorumBusyError, StorageError or PeerError; whether it was done is then unknown."""
        if self._metadata.is_leader or self._peers is None:
            return await self._metadata.propose(entry)
        leader = self._metadata.leader_id
        if leader is None or leader == self._metadata.me.broker_id:
            raise NotControllerError("There is no leader of the metadata quorum at the moment: try again.")
        from anabranch.broker.peers.messages import Proposed, ProposeEntry  # Not for a node alone.

        answer = await self._peers.ask(leader, ProposeEntry(encode_entry(entry)), ASK_MS_MAX)
        assert isinstance(answer, Proposed)
        return Offset(answer.offset)


async def asked(metadata: MetadataLog, sender: BrokerId, question: "ProposeEntry") -> "Proposed":
    """At the leader. Raises InvalidRequestError, NotControllerError, QuorumBusyError, StorageError."""
    from anabranch.broker.peers.messages import Proposed

    data = bytes(question.data)  # Its buffer is used again while the quorum agrees.
    check(sender, data)
    return Proposed(await metadata.propose(data))


def check(sender: BrokerId, data: bytes) -> None:
    """Raises InvalidRequestError for what no broker of this version proposes."""
    if len(data) > PROPOSAL_BYTES_MAX:
        raise InvalidRequestError(
            f"An entry of {len(data)} bytes; at most {PROPOSAL_BYTES_MAX} are proposed."
        )
    try:
        entry = decode_entry(data)
        is_known = (
            _is_incarnation(entry)
            or _is_commit_of(sender, entry)
            or _is_replace_of(sender, entry)
            or _is_import_of(sender, entry)
            or _is_start(entry)
            or _is_leave_of(sender, entry)
            or _is_left_of(sender, entry)
        )
    except (CorruptDataError, TypeError, ValueError, LookupError, AttributeError) as error:
        raise InvalidRequestError(f"An entry that cannot be read was proposed: {error!r}.") from error
    if not is_known:
        raise InvalidRequestError(f"Broker {sender} may not propose an entry of type {entry['type']!r}.")


def _is_incarnation(entry: Entry) -> bool:
    return entry["type"] == "objects-incarnation" and 0 < int(entry["incarnation"], 16) < 2**64


def _is_commit_of(sender: BrokerId, entry: Entry) -> bool:
    """Nobody speaks for another broker."""
    if entry["type"] != "objects-commit" or entry["broker"] != sender:
        return False
    check_commits(entry)
    return True


def _is_import_of(sender: BrokerId, entry: Entry) -> bool:
    if entry["type"] != "objects-import" or entry["broker"] != sender:
        return False
    check_import(entry)
    return True


def _is_start(entry: Entry) -> bool:
    """Of a partition that a broker leads and of which a part is in the store."""
    if entry["type"] != "objects-start":
        return False
    for (_, partition), offset in starts_of(entry):
        if type(partition) is not int or not 0 <= offset < 2**63:
            raise ValueError(f"{offset!r} is no start of partition {partition!r}")
    return True


def _is_leave_of(sender: BrokerId, entry: Entry) -> bool:
    if entry["type"] != "leave" or entry["closer"] not in (None, sender):
        return False
    _check_partition(entry)
    _check_numbers(entry["before"])
    return True


def _is_left_of(sender: BrokerId, entry: Entry) -> bool:
    if entry["type"] != "left" or entry["replicas"][0] != sender:
        return False
    _check_partition(entry)
    _check_numbers(entry["start"], entry["move"], *entry["replicas"])
    return True


def _check_partition(entry: Entry) -> None:
    UUID(hex=entry["id"])
    _check_numbers(entry["partition"])


def _check_numbers(*numbers: object) -> None:
    for number in numbers:
        if type(number) is not int or not -1 <= number < 2**63:
            raise ValueError(f"{number!r} is no number of it")


def _is_replace_of(sender: BrokerId, entry: Entry) -> bool:
    if entry["type"] != "objects-replace" or entry["broker"] != sender:
        return False
    check_replacements(entry)
    return True
