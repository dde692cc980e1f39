"""Kafka's error codes, and which of them may pass."""

from kio.schema.errors import ErrorCode as KioErrorCode

from anabranch.wire.error_codes import ErrorCode


def test_codes_and_retriability_agree_with_kio() -> None:
    ours = {int(code): code for code in ErrorCode}
    for theirs in KioErrorCode:
        assert ours[int(theirs)].retriable == theirs.retriable, theirs


def test_codes_have_kafkas_names() -> None:
    assert ErrorCode.UNSUPPORTED_VERSION == 35
    assert ErrorCode.NOT_LEADER_OR_FOLLOWER.retriable
    assert not ErrorCode.NONE.retriable
