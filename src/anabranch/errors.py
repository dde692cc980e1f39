"""One exception tree for everything that can go wrong on purpose.

Rooms below the broker raise these; only `broker.requests.error_table` knows which Kafka error code each becomes. A
message is one sentence a user can act on. Anything that is not an `AnabranchError` is a defect of ours and
closes the link it happened on.
"""

from collections.abc import Sequence
from typing import TypeVar


class AnabranchError(Exception):
    """The root: catch this, never `Exception`."""


E = TypeVar("E", bound=BaseException)


def detached(error: E) -> E:
    """Return the error without its traceback, cause and context.

    Whoever keeps an error keeps these too, and with them the frames that raised it and the payload they had unpacked.
    """
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


# --- what a peer sent is not the protocol: the connection is closed ---------------------------------------


class ProtocolError(AnabranchError):
    """Bytes that are not a well-formed Kafka request."""


class FrameTooLargeError(ProtocolError):
    """A frame announces more bytes than a request may have."""


class TooManyElementsError(ProtocolError):
    """A request has more array elements and tagged fields than one may have."""


class UnsupportedVersionError(ProtocolError):
    """An API, or a version of it, that this node does not serve."""


# --- records ---------------------------------------------------------------------------------------------


class CorruptDataError(AnabranchError):
    """Bytes whose checksum or structure does not hold."""


class RefusedRecordsError(AnabranchError):
    """A batch with records that break a rule: `record_errors` has the place in the batch of each that does, and why
    (KIP-467). Empty if the batch itself is wrong."""

    def __init__(self, message: str, record_errors: Sequence[tuple[int, str]] = ()) -> None:
        super().__init__(message)
        self.record_errors = record_errors


class InvalidRecordError(RefusedRecordsError):
    """A batch that is intact but breaks a rule: counts, offsets, a missing key in a compacted topic."""


class UnsupportedRecordFormatError(AnabranchError):
    """Message format v0 or v1; only RecordBatch v2 is kept."""


class UnsupportedCompressionError(AnabranchError):
    """A codec number that nobody defined, or one that is not installed."""


class BatchTooLargeError(AnabranchError):
    """A batch above the topic's max.message.bytes, or one that unpacks to more than we are willing to hold."""


class InvalidTimestampError(RefusedRecordsError):
    """A record's time lies outside what the topic accepts."""


# --- storage ---------------------------------------------------------------------------------------------


class StorageError(AnabranchError):
    """The disk refused; nothing of the write was kept, and the next one may succeed (a full disk)."""


class FencedLogError(StorageError):
    """A sync failed, so what the disk holds is unknown: no write is accepted until a restart has verified it."""


class StoreError(AnabranchError):
    """The object store did not do what it was asked."""


class StoreUnavailableError(StoreError):
    """The object store refuses, is overloaded or silent: try again. The last try may have succeeded all the same."""


class StoreRefusedError(StoreError):
    """The object store will not do this, however often it is asked: credentials, or no such bucket."""


class ObjectRefusedError(StoreRefusedError):
    """What has the name of this one object is none, and will not become one: a link, a folder, a pipe."""


class ObjectExistsError(StoreError):
    """There is an object of that name already."""


class ObjectGoneError(StoreError):
    """There is no object of that name, or not any more."""


class OfferRefusedError(AnabranchError):
    """Compacted segments that somebody offered and that are not what the log's own cleaner would make of it."""


class DataFolderInUseError(AnabranchError):
    """Another process holds the lock of the data folder."""


class OffsetOutOfRangeError(AnabranchError):
    """A read below the first or above the last offset."""


class RestoreRefusedError(AnabranchError):
    """A cluster cannot be brought back from this bucket as it is, or not into this folder."""


class WorkStoppedError(AnabranchError):
    """Long work in the background was asked to stop; what it had done so far does no harm."""


# --- topics and configs ----------------------------------------------------------------------------------


class UnknownTopicOrPartitionError(AnabranchError):
    pass


class UnknownTopicIdError(AnabranchError):
    pass


class TopicExistsError(AnabranchError):
    pass


class InvalidTopicError(AnabranchError):
    """A name that breaks Kafka's rules, or an internal topic where none is allowed."""


class ReadOnlyBranchError(InvalidTopicError):
    """A branch as a topic of its own, `orders@5`, where something is to be written or changed."""


class InvalidPartitionsError(AnabranchError):
    pass


class InvalidReplicationFactorError(AnabranchError):
    pass


class InvalidReplicaAssignmentError(AnabranchError):
    pass


class InvalidConfigError(AnabranchError):
    """A setting that is unknown, out of bounds, or of the wrong kind; the message names it."""


class InvalidRequestError(AnabranchError):
    pass


class PolicyViolationError(AnabranchError):
    pass


class TopicDeletionDisabledError(AnabranchError):
    pass


class NotOwnerError(AnabranchError):
    """This broker may not write or serve the partition now."""


class OffsetNotAvailableError(AnabranchError):
    """A new leader does not know yet how far records are safe."""


class FencedGenerationError(AnabranchError):
    """The client knows an older generation than ours."""


class UnknownGenerationError(AnabranchError):
    """The client knows a newer generation than ours."""


class LogDirNotFoundError(AnabranchError):
    """A folder that is not this broker's data folder."""


class ReplicaNotAvailableError(AnabranchError):
    """A partition of which this broker keeps no copy."""


class InvalidAcksError(AnabranchError):
    pass


class NotEnoughCopiesError(AnabranchError):
    """The topic's min.insync.replicas asks for more copies than there are, and the producer for acks=all."""


class BackPressureError(AnabranchError):
    """A queue is at its named limit; try again later."""


class LocalClusterError(AnabranchError):
    """Broker processes on this machine that cannot be started as asked: a folder, a port, a program that ended."""


class ClusterAnswerError(LocalClusterError):
    """A running cluster that was asked something and did not answer, or refused."""


class ClusterBusyError(ClusterAnswerError):
    """Nobody answered, or no broker leads the metadata quorum at the moment: the same question later may be answered.
    Whether a change was made is not known."""


class RequestTimedOutError(AnabranchError):
    pass


# --- the metadata quorum ---------------------------------------------------------------------------------


class NotControllerError(AnabranchError):
    """Another broker leads the metadata quorum, or none does at the moment."""


class QuorumBusyError(AnabranchError):
    """The metadata quorum can do this only once something else is committed; try again."""


class DuplicateBrokerError(AnabranchError):
    """A broker id that a living broker with another disk has."""


class UnknownBrokerError(AnabranchError):
    """A broker that is not registered, or was registered anew since."""


class NoReassignmentError(AnabranchError):
    """There is no move of the partition that could be called off."""


class ElectionNotNeededError(AnabranchError):
    """The preferred replica leads already."""


class PreferredLeaderNotAvailableError(AnabranchError):
    """The preferred replica cannot lead now."""


# --- links between brokers -------------------------------------------------------------------------------


class PeerError(AnabranchError):
    """The root of what can go wrong between two brokers."""


class PeerProtocolError(PeerError):
    """Bytes on a peer link that are not what a broker of this version sends: the link is closed."""


class PeerUnreachableError(PeerError):
    """There is no link, it broke, or no answer came in time: whether it was done on the other side is unknown."""


class PeerRefusedError(PeerError):
    """The other broker answered, with a reason why not; `kind` is the name of the error it met."""

    def __init__(self, reason: str, kind: str = "") -> None:
        super().__init__(reason)
        self.kind = kind


# --- fetch sessions --------------------------------------------------------------------------------------


class UnknownFetchSessionError(AnabranchError):
    pass


class InvalidFetchSessionEpochError(AnabranchError):
    pass


class FetchSessionTopicIdError(AnabranchError):
    pass


# --- producers -------------------------------------------------------------------------------------------


class OutOfOrderSequenceError(AnabranchError):
    """A gap between this batch's sequence and the last one kept."""


class ProducerFencedError(AnabranchError):
    """A newer producer epoch has taken over."""


class EarlierBatchRefusedError(AnabranchError):
    """A batch of the same producer before this one was refused for the moment, and has to be sent again first."""


class TooManyProducersError(AnabranchError):
    """No room to remember another idempotent producer without forgetting one that may still repeat a batch."""


class TransactionsUnsupportedError(AnabranchError):
    """Transactions come with a later version; a transactional request is refused, never half done."""


# --- groups ----------------------------------------------------------------------------------------------


class GroupError(AnabranchError):
    """The root of everything a consumer group can refuse."""


class CoordinatorNotAvailableError(GroupError):
    pass


class CoordinatorLoadingError(GroupError):
    pass


class NotCoordinatorError(GroupError):
    pass


class IllegalGenerationError(GroupError):
    pass


class InconsistentGroupProtocolError(GroupError):
    pass


class InvalidGroupIdError(GroupError):
    pass


class UnknownMemberIdError(GroupError):
    pass


class InvalidSessionTimeoutError(GroupError):
    pass


class RebalanceInProgressError(GroupError):
    pass


class OffsetMetadataTooLargeError(GroupError):
    pass


class OffsetsFullError(GroupError):
    pass


class GroupNotEmptyError(GroupError):
    pass


class GroupIdNotFoundError(GroupError):
    pass


class MemberIdRequiredError(GroupError):
    def __init__(self, member_id: str) -> None:
        super().__init__("Join again with the member id in this answer.")
        self.member_id = member_id


class GroupFullError(GroupError):
    pass


class FencedInstanceError(GroupError):
    pass


class GroupSubscribedError(GroupError):
    pass


# --- the gateway -----------------------------------------------------------------------------------------


class GatewayError(AnabranchError):
    """What the HTTP port refuses by itself: `status` is HTTP's, `code` one word for programs."""

    def __init__(self, message: str, code: str = "BAD_REQUEST", status: int = 400) -> None:
        super().__init__(message)
        self.code = code
        self.status = status


class BrokerRefusedError(AnabranchError):
    """A broker has answered a request of the gateway with this one of Kafka's error codes."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


# --- the pipeline ----------------------------------------------------------------------------------------


class PipelineError(AnabranchError):
    """A job over records in bulk cannot go on."""


class ExtraMissingError(PipelineError):
    """A library that only the pipeline needs is not installed."""


class JavaMissingError(PipelineError):
    """No Java that could run Spark."""


class OptionError(PipelineError):
    """An option that does not exist, or a value it cannot have."""


class BrokerUnreachableError(PipelineError):
    """No broker answered, or none could, for as long as the reader was willing to wait."""


class TryAgainError(PipelineError):
    """A broker is away or not ready: the same request may succeed in a moment."""


class SegmentChangedError(PipelineError):
    """A segment file is not the one that was planned with: the same records must come by the protocol."""


class DataLossError(PipelineError):
    """Records that were to be read are not there any more, and the reader was told to care (`failOnDataLoss`)."""


class TableError(PipelineError):
    """A table cannot take what was read: its schema, its catalog or its files stand against it."""


class TableMissingError(TableError):
    """There is no such table."""


class TableMovedError(TableError):
    """Somebody else committed to the table since it was read: read it again and decide anew."""


class LostRecordsError(PipelineError):
    """A batch whose counts do not add up: what was read is not what was written and set aside."""
