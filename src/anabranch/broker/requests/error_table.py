"""Which Kafka error code each of our errors becomes. The only place that knows both.

The most specific class wins. An error that is missing here is a defect: `code_of` says UNKNOWN_SERVER_ERROR,
and a test makes sure that no class is missing.
"""

from anabranch import errors
from anabranch.wire.error_codes import ErrorCode

CODES: dict[type[errors.AnabranchError], ErrorCode] = {
    errors.ProtocolError: ErrorCode.INVALID_REQUEST,
    errors.UnsupportedVersionError: ErrorCode.UNSUPPORTED_VERSION,
    errors.CorruptDataError: ErrorCode.CORRUPT_MESSAGE,
    errors.RefusedRecordsError: ErrorCode.INVALID_RECORD,
    errors.InvalidRecordError: ErrorCode.INVALID_RECORD,
    errors.UnsupportedRecordFormatError: ErrorCode.INVALID_RECORD,
    errors.UnsupportedCompressionError: ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    errors.BatchTooLargeError: ErrorCode.MESSAGE_TOO_LARGE,
    errors.InvalidTimestampError: ErrorCode.INVALID_TIMESTAMP,
    errors.StorageError: ErrorCode.KAFKA_STORAGE_ERROR,
    errors.StoreError: ErrorCode.NOT_ENOUGH_REPLICAS,
    errors.DataFolderInUseError: ErrorCode.KAFKA_STORAGE_ERROR,
    errors.WorkStoppedError: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    errors.OffsetOutOfRangeError: ErrorCode.OFFSET_OUT_OF_RANGE,
    errors.UnknownTopicOrPartitionError: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    errors.UnknownTopicIdError: ErrorCode.UNKNOWN_TOPIC_ID,
    errors.TopicExistsError: ErrorCode.TOPIC_ALREADY_EXISTS,
    errors.InvalidTopicError: ErrorCode.INVALID_TOPIC_EXCEPTION,
    errors.ReadOnlyBranchError: ErrorCode.INVALID_TOPIC_EXCEPTION,
    errors.InvalidPartitionsError: ErrorCode.INVALID_PARTITIONS,
    errors.InvalidReplicationFactorError: ErrorCode.INVALID_REPLICATION_FACTOR,
    errors.InvalidReplicaAssignmentError: ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    errors.InvalidConfigError: ErrorCode.INVALID_CONFIG,
    errors.InvalidRequestError: ErrorCode.INVALID_REQUEST,
    errors.PolicyViolationError: ErrorCode.POLICY_VIOLATION,
    errors.TopicDeletionDisabledError: ErrorCode.TOPIC_DELETION_DISABLED,
    errors.NotOwnerError: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    errors.OffsetNotAvailableError: ErrorCode.OFFSET_NOT_AVAILABLE,
    errors.FencedGenerationError: ErrorCode.FENCED_LEADER_EPOCH,
    errors.UnknownGenerationError: ErrorCode.UNKNOWN_LEADER_EPOCH,
    errors.LogDirNotFoundError: ErrorCode.LOG_DIR_NOT_FOUND,
    errors.ReplicaNotAvailableError: ErrorCode.REPLICA_NOT_AVAILABLE,
    errors.InvalidAcksError: ErrorCode.INVALID_REQUIRED_ACKS,
    errors.NotEnoughCopiesError: ErrorCode.NOT_ENOUGH_REPLICAS,
    errors.BackPressureError: ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    errors.RequestTimedOutError: ErrorCode.REQUEST_TIMED_OUT,
    errors.NotControllerError: ErrorCode.NOT_CONTROLLER,
    errors.QuorumBusyError: ErrorCode.REQUEST_TIMED_OUT,
    errors.DuplicateBrokerError: ErrorCode.DUPLICATE_BROKER_REGISTRATION,
    errors.UnknownBrokerError: ErrorCode.BROKER_ID_NOT_REGISTERED,
    errors.NoReassignmentError: ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
    errors.ElectionNotNeededError: ErrorCode.ELECTION_NOT_NEEDED,
    errors.PreferredLeaderNotAvailableError: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    errors.PeerError: ErrorCode.UNKNOWN_SERVER_ERROR,
    errors.PeerUnreachableError: ErrorCode.REQUEST_TIMED_OUT,
    errors.UnknownFetchSessionError: ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    errors.InvalidFetchSessionEpochError: ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    errors.FetchSessionTopicIdError: ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    errors.OutOfOrderSequenceError: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    errors.ProducerFencedError: ErrorCode.INVALID_PRODUCER_EPOCH,
    # Of the codes that clients try again after, the one that says that nothing was written.
    errors.EarlierBatchRefusedError: ErrorCode.NOT_ENOUGH_REPLICAS,
    errors.TooManyProducersError: ErrorCode.NOT_ENOUGH_REPLICAS,
    errors.TransactionsUnsupportedError: ErrorCode.INVALID_REQUEST,
    errors.CoordinatorNotAvailableError: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    errors.CoordinatorLoadingError: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    errors.NotCoordinatorError: ErrorCode.NOT_COORDINATOR,
    errors.IllegalGenerationError: ErrorCode.ILLEGAL_GENERATION,
    errors.InconsistentGroupProtocolError: ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    errors.InvalidGroupIdError: ErrorCode.INVALID_GROUP_ID,
    errors.UnknownMemberIdError: ErrorCode.UNKNOWN_MEMBER_ID,
    errors.InvalidSessionTimeoutError: ErrorCode.INVALID_SESSION_TIMEOUT,
    errors.RebalanceInProgressError: ErrorCode.REBALANCE_IN_PROGRESS,
    errors.OffsetsFullError: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    errors.OffsetMetadataTooLargeError: ErrorCode.OFFSET_METADATA_TOO_LARGE,
    errors.GroupNotEmptyError: ErrorCode.NON_EMPTY_GROUP,
    errors.GroupIdNotFoundError: ErrorCode.GROUP_ID_NOT_FOUND,
    errors.MemberIdRequiredError: ErrorCode.MEMBER_ID_REQUIRED,
    errors.GroupFullError: ErrorCode.GROUP_MAX_SIZE_REACHED,
    errors.FencedInstanceError: ErrorCode.FENCED_INSTANCE_ID,
    errors.GroupSubscribedError: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
}


def code_of(error: errors.AnabranchError) -> ErrorCode:
    for kind in type(error).__mro__:
        code = CODES.get(kind)
        if code is not None:
            return code
    return ErrorCode.UNKNOWN_SERVER_ERROR
