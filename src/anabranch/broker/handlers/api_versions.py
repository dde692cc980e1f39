"""ApiVersions, versions 0 to 4. A newer one is answered with error 35 in a version 0 body, from which the client
learns what to ask again with. Since version 3 a client names its software, in characters that can stand in a
metric's name, or is refused. Left out: features, which come with a cluster.
"""

import re
from typing import TYPE_CHECKING, Any

from anabranch.broker.requests.call import Call
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

VERSION_MAX = 4
SOFTWARE_SINCE = 3
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def handle(broker: "Broker", call: Call, request: dict[str, Any]) -> dict[str, Any]:
    from anabranch.broker.handlers import advertised  # The table lists this module too.

    if call.header.api_version >= SOFTWARE_SINCE and not _is_named(request):
        return {"error_code": ErrorCode.INVALID_REQUEST, "api_keys": []}
    return {
        "error_code": ErrorCode.NONE,
        "api_keys": [
            {"api_key": key, "min_version": first, "max_version": last} for key, first, last in advertised()
        ],
    }


def _is_named(request: dict[str, Any]) -> bool:
    names = request["client_software_name"], request["client_software_version"]
    return all(_SOFTWARE.fullmatch(name) for name in names)


def unsupported() -> dict[str, Any]:
    return {
        "error_code": ErrorCode.UNSUPPORTED_VERSION,
        "api_keys": [{"api_key": ApiKey.API_VERSIONS, "min_version": 0, "max_version": VERSION_MAX}],
    }
