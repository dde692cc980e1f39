"""What the gateway answers when something is wrong: a status, and `{"error": {"code": ..., "message": ...}}`.

The code is Kafka's name for it where Kafka has one, so that it means the same on every door.
"""

from typing import Any

from anabranch.errors import AnabranchError, GatewayError
from anabranch.gateway.calls import code_of_error
from anabranch.gateway.http.texts import json_text
from anabranch.wire.error_codes import ErrorCode

STATUSES = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: 404,
    ErrorCode.UNKNOWN_TOPIC_ID: 404,
    ErrorCode.GROUP_ID_NOT_FOUND: 404,
    ErrorCode.OFFSET_OUT_OF_RANGE: 416,
    ErrorCode.MESSAGE_TOO_LARGE: 413,
    ErrorCode.RECORD_LIST_TOO_LARGE: 413,
    ErrorCode.INVALID_TOPIC_EXCEPTION: 400,
    ErrorCode.INVALID_RECORD: 400,
    ErrorCode.INVALID_TIMESTAMP: 400,
    ErrorCode.INVALID_REQUEST: 400,
    ErrorCode.INVALID_CONFIG: 400,
    ErrorCode.INVALID_PARTITIONS: 400,
    ErrorCode.INVALID_GROUP_ID: 400,
    ErrorCode.INVALID_SESSION_TIMEOUT: 400,
    ErrorCode.OFFSET_METADATA_TOO_LARGE: 400,
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: 409,
    ErrorCode.TOPIC_ALREADY_EXISTS: 409,
    ErrorCode.REBALANCE_IN_PROGRESS: 409,
    ErrorCode.NON_EMPTY_GROUP: 409,
    ErrorCode.UNKNOWN_MEMBER_ID: 410,
    ErrorCode.ILLEGAL_GENERATION: 410,
    ErrorCode.FENCED_INSTANCE_ID: 410,
    ErrorCode.GROUP_MAX_SIZE_REACHED: 429,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: 429,
    ErrorCode.REQUEST_TIMED_OUT: 504,
    ErrorCode.CORRUPT_MESSAGE: 500,
    ErrorCode.POLICY_VIOLATION: 403,
}
DEFECT = 500
DEFECT_CODE = "DEFECT"
"""Says that the node is at fault: where a client is told this, the node's log says what happened."""
TRY_AGAIN = 503
UPGRADE_REQUIRED = 426


def status_of(error: AnabranchError) -> int:
    if isinstance(error, GatewayError):
        return error.status
    code = code_of_error(error)
    return STATUSES.get(code) or (TRY_AGAIN if code.retriable else DEFECT)


def error_body(error: AnabranchError) -> dict[str, Any]:
    """For JSON: what went wrong, and what to do."""
    return {"error": {"code": code_word(error), "message": str(error)}}


def code_word(error: AnabranchError) -> str:
    return error.code if isinstance(error, GatewayError) else code_of_error(error).name


def error_json(error: AnabranchError) -> bytes:
    return json_text(error_body(error)) + b"\n"


def headers_of(error: AnabranchError) -> dict[str, str]:
    """What a client should know besides."""
    status = status_of(error)
    if status in (TRY_AGAIN, 429):
        return {"Retry-After": "1"}
    if status == UPGRADE_REQUIRED:
        return {"Upgrade": "websocket", "Connection": "Upgrade"}
    if status in (408, 413):
        return {"Connection": "close"}  # What is left of the request is not read.
    return {"WWW-Authenticate": 'Bearer realm="anabranch"'} if status == 401 else {}
