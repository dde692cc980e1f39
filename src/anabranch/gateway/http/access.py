"""Access: who may use the gateway. Judged for every request and every WebSocket before anything of it is read.

- A page in a browser may if its Origin is the host it asks (`Host`), or named in `gateway.origins`.
- `Host` must be an address, localhost, the host in the settings `http` or `advertise`, or that of a named origin:
  otherwise any page could reach the node under a name of its own that resolves to the node's address (DNS rebinding).
  This holds for every address that is bound. Health alone is told under any name.
- With a token file, everybody shows the token: `Authorization: Bearer ...`, or `?access_token=` where a browser's
  WebSocket cannot send headers. Metrics, health and the pages themselves, which hold no records, need none.
"""

import hmac
import ipaddress
from collections.abc import Mapping
from urllib.parse import parse_qs

from anabranch.config import NodeSettings, host_and_port, http_host_and_port, is_loopback
from anabranch.config.private_file import read_private
from anabranch.errors import GatewayError, InvalidConfigError

HEALTH = "/healthz"
PAGES = frozenset({"/metrics", HEALTH, "/v1/demo", "/v1/demo.js", "/v1/anabranch.js"})
TOKEN_BYTES_MIN = 16
TOKEN_BYTES_MAX = 4096
FILE_BYTES_MAX = 2 * TOKEN_BYTES_MAX
"""With the spaces and line ends around the token."""
ANY = "*"


class Access:
    def __init__(self, settings: NodeSettings) -> None:
        """Raises InvalidConfigError if the token cannot be read."""
        self._origins = frozenset(origin.lower().rstrip("/") for origin in settings.gateway_origins)
        self._hosts = frozenset(
            _host_of(origin.partition("://")[2]) for origin in self._origins
        ) | _own_names(settings)
        self._token = read_token(settings.gateway_token_file) if settings.gateway_token_file else None
        self.is_local = is_loopback(http_host_and_port(settings.http)[0]) if settings.http else True

    @property
    def needs_token(self) -> bool:
        return self._token is not None

    def check(self, path: str, headers: Mapping[str, str], query: bytes, *, is_socket: bool) -> None:
        """Raises GatewayError with what is wrong. Names of headers are in lower case."""
        origin = headers.get("origin")
        if origin is not None:
            self.check_origin(origin, headers.get("host", ""))
        if path != HEALTH:
            self._check_host(headers.get("host", ""))
        if self._token is not None and path not in PAGES:
            self._check_token(self._token, headers.get("authorization", ""), query if is_socket else b"")

    def check_preflight(self, headers: Mapping[str, str]) -> None:
        """The same for a browser that asks what a page may do. It shows no token yet."""
        self.check_origin(headers.get("origin", ""), headers.get("host", ""))
        self._check_host(headers.get("host", ""))

    def check_origin(self, origin: str, host: str) -> None:
        origin = origin.lower()
        host = host or "no host at all"  # `null`, and what else is no origin, has none either.
        if ANY in self._origins or origin in self._origins or origin.partition("://")[2] == host.lower():
            return
        raise GatewayError(
            f"Pages of {origin} may not use this gateway: name it in the setting gateway.origins.",
            "ORIGIN_REFUSED",
            403,
        )

    def _check_host(self, host: str) -> None:
        if ANY in self._origins:
            return
        name = _host_of(host.lower())
        if name == "localhost" or name in self._hosts or _is_address(name):
            return
        raise GatewayError(
            f"This node does not know the host name {host or '(none)'}: ask its IP address, or name "
            f"http://{host or 'HOST'} in its setting gateway.origins.",
            "HOST_REFUSED",
            403,
        )

    def _check_token(self, token: bytes, authorization: str, query: bytes) -> None:
        scheme, _, shown = authorization.partition(" ")
        if scheme.lower() != "bearer":
            tokens = parse_qs(query.decode("latin-1")).get("access_token", [])
            shown = tokens[0] if len(tokens) == 1 else ""
        if not hmac.compare_digest(shown.strip().encode("utf-8", "surrogateescape"), token):
            raise GatewayError(
                "A token is needed: send the header Authorization: Bearer TOKEN, with the one in the node's "
                "gateway.token.file.",
                "TOKEN_REFUSED",
                401,
            )

    def shares_with(self, headers: Mapping[str, str]) -> dict[str, str]:
        """What a browser is told so that it hands the answer to the page that asked."""
        origin = headers.get("origin")
        if origin is None or origin.lower().partition("://")[2] == headers.get("host", "").lower():
            return {}
        return {
            "access-control-allow-origin": origin,
            "access-control-expose-headers": "*",
            "vary": "Origin",
        }


def _own_names(settings: NodeSettings) -> frozenset[str]:
    """Hosts by which whoever runs the node has told it that it is reached."""
    names = set()
    if settings.http:
        names.add(http_host_and_port(settings.http)[0].lower())
    if settings.advertise:
        names.add(host_and_port(settings.advertise)[0].lower())
    return frozenset(names)


def _host_of(place: str) -> str:
    """Without the port and the brackets."""
    if place.startswith("["):
        return place[1:].partition("]")[0]
    return place.partition(":")[0]


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def read_token(path: str) -> bytes:
    """The token in a file, without the spaces and line ends around it."""
    token = read_private("gateway.token.file", path, FILE_BYTES_MAX).strip()
    if not TOKEN_BYTES_MIN <= len(token) <= TOKEN_BYTES_MAX or not token.isascii() or b" " in token:
        raise InvalidConfigError(
            f"The token in {path} must be {TOKEN_BYTES_MIN} to {TOKEN_BYTES_MAX} letters and digits: make one with "
            "`openssl rand -hex 32`."
        )
    return token
