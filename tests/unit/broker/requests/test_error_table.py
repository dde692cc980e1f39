"""Every error that a request can meet has a Kafka code."""

import inspect

import pytest

from anabranch import errors
from anabranch.broker.requests.error_table import CODES, code_of
from anabranch.wire.error_codes import ErrorCode

ROOTS = {errors.AnabranchError, errors.GroupError}
ELSEWHERE = (
    errors.PipelineError,
    errors.OfferRefusedError,
    errors.LocalClusterError,
    errors.RestoreRefusedError,
    errors.GatewayError,
    errors.BrokerRefusedError,
)
"""Met by jobs, by the cleaner, by the gateway's clients and by those who start processes or bring a cluster back, never
by a request."""
CLASSES = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, errors.AnabranchError) and kind not in ROOTS and not issubclass(kind, ELSEWHERE)
]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_class_has_a_code(kind: type[errors.AnabranchError]) -> None:
    assert any(parent in CODES for parent in kind.__mro__)


def test_most_specific_class_wins_and_subclasses_inherit() -> None:
    assert code_of(errors.UnsupportedVersionError()) == ErrorCode.UNSUPPORTED_VERSION
    assert code_of(errors.FrameTooLargeError()) == ErrorCode.INVALID_REQUEST
    assert code_of(errors.FencedLogError()) == ErrorCode.KAFKA_STORAGE_ERROR


def test_error_without_a_code_is_a_server_error() -> None:
    assert code_of(errors.AnabranchError()) == ErrorCode.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize(
    "kind",
    [
        errors.StorageError,
        errors.NotOwnerError,
        errors.CoordinatorNotAvailableError,
        errors.CoordinatorLoadingError,
        errors.BackPressureError,
        errors.RequestTimedOutError,
        errors.UnknownTopicOrPartitionError,
        errors.CorruptDataError,
    ],
)
def test_what_may_pass_is_tried_again_by_clients(kind: type[errors.AnabranchError]) -> None:
    assert code_of(kind("x")).retriable


@pytest.mark.parametrize(
    "kind",
    [
        errors.InvalidRecordError,
        errors.BatchTooLargeError,
        errors.TopicExistsError,
        errors.InvalidConfigError,
    ],
)
def test_what_will_not_pass_is_not_tried_again(kind: type[errors.AnabranchError]) -> None:
    assert not code_of(kind("x")).retriable
