"""What is ambiguous or malformed in a request, and what its sender is told. Pure.

Two readers of one connection, a proxy and this node, must not find different requests in the same bytes, nor one of
them a different host, origin or token. Whatever HTTP allows only once is taken only once, and a body has one length.
"""

import re
from collections.abc import Iterable

Headers = Iterable[tuple[bytes, bytes]]
"""With names in lower case."""

ONCE = frozenset(
    {
        b"authorization",
        b"content-encoding",
        b"content-length",
        b"content-type",
        b"expect",
        b"host",
        b"origin",
        b"sec-websocket-key",
        b"sec-websocket-version",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""A second header of one of these names is refused, even if it is identical. Sec-WebSocket-Protocol and -Extensions are
lists, which RFC 6455 lets a client spread over several lines."""
VERSIONS = ("1.0", "1.1")
AMBIGUOUS = "AMBIGUOUS_REQUEST"
TWO_LENGTHS = "Content-Length and Transfer-Encoding both say how long the body is: send one of them."
LENGTH_DIGITS_MAX = 20
"""Of a Content-Length: what 64 bits need. With zeroes before it a number may be as long as a head, and Python reads no
such one."""
_HOST = re.compile(rb"([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]{0,5})?", re.IGNORECASE)

_AUTHORITY_END = re.compile(rb"[/?#]")


def ambiguity(headers: Headers, http_version: str, target: bytes) -> str | None:
    """Why a request with this head is refused, and what to send; None: it is clear."""
    seen: dict[bytes, bytes] = {}
    for name, value in headers:
        if name in ONCE:
            if name in seen:
                return f"The header {name.decode('ascii', 'replace')} is there twice: send one."
            seen[name] = value
    if b"transfer-encoding" in seen:
        if http_version != "1.1":
            return "Transfer-Encoding needs HTTP/1.1: send Content-Length."
        if b"content-length" in seen:
            return TWO_LENGTHS
    if b"upgrade" in seen and http_version != "1.1":
        return "A WebSocket needs HTTP/1.1."
    return _long_number(seen.get(b"content-length", b"")) or _other_host(seen.get(b"host", b""), target)


def _long_number(length: bytes) -> str | None:
    digits = len(length.strip())
    if digits <= LENGTH_DIGITS_MAX:
        return None
    return f"Content-Length has {digits} digits: send how many bytes the body has, without zeroes before the number."


def other_version(version: str) -> str:
    """What the sender of a request in a version that is not one of `VERSIONS` is told."""
    return f"HTTP/{version} is not served here: ask in HTTP/1.1."


def origin_form(target: bytes) -> bytes:
    """A target that names the host, as a proxy is sent one, without it: http://host?x is /?x."""
    scheme, is_absolute, rest = target.partition(b"://")
    if not is_absolute or not scheme.isalpha():
        return target
    path = rest[len(_authority(rest)) :]
    return path if path.startswith(b"/") else b"/" + path


def _authority(rest: bytes) -> bytes:
    """Of what follows `://`: the host, up to the path or the query."""
    return _AUTHORITY_END.split(rest, maxsplit=1)[0]


def _other_host(host: bytes, target: bytes) -> str | None:
    if host and _HOST.fullmatch(host) is None:
        return "The header host is not HOST or HOST:PORT: send the address that you connect to."
    scheme, is_absolute, rest = target.partition(b"://")
    if host and is_absolute and scheme.isalpha() and _without_port(_authority(rest)) != _without_port(host):
        return "The request names one host in its first line and another one in the header host: send one."
    return None


def _without_port(host: bytes) -> bytes:
    """A host to compare: a port that is empty or that of http may be left out."""
    lower = host.lower()
    return lower.removesuffix(b":80") if lower.endswith(b":80") else lower.removesuffix(b":")


def malformation(found: str, *, is_in_body: bool) -> tuple[str, str]:
    """Code and sentence for what the parser has found wrong, in its words (llhttp's), or what reads the target has."""
    lower = found.lower()
    if "duplicate content-length" in lower:
        return AMBIGUOUS, "The header content-length is there twice: send one."
    if "can't be present with" in lower:
        return AMBIGUOUS, TWO_LENGTHS
    if "transfer-encoding" in lower:
        return AMBIGUOUS, (
            "Transfer-Encoding may be there once and say chunked once, at its end: send Transfer-Encoding: chunked, or "
            "Content-Length."
        )
    if "content-length overflow" in lower:
        return AMBIGUOUS, "Content-Length is too large a number: send how many bytes the body has."
    if "content-length" in lower:
        return AMBIGUOUS, "Content-Length is not one whole number: send how many bytes the body has."
    if "pri/upgrade" in lower:
        return "BAD_REQUEST", other_version("2")
    if "invalid url" in lower:
        return (
            "BAD_REQUEST",
            "The request target is invalid: start it with a path, as in GET /v1/topics.",
        )
    if "callback error" in lower:
        return "BAD_REQUEST", "The head of this request cannot be read here: send a simpler one."
    if is_in_body:
        return "BAD_REQUEST", (
            f"The chunks of the body are malformed ({found}): begin each with its size in hexadecimal digits, and end "
            "with one of size 0."
        )
    return "BAD_REQUEST", f"This is an HTTP port, and that was no HTTP/1.1 request: {found}."
