"""What `anabranch doctor` looks at on the network: can a node listen there, and who answers where a broker may run?"""

import socket
import struct
from contextlib import closing

import click

from anabranch.cli.doctor.findings import Finding
from anabranch.errors import AnabranchError

CONNECT_SECONDS_MAX = 3.0
ANSWER_SECONDS_MAX = 2.0
KAFKA = "Kafka"
HTTP = "HTTP"
TLS = "TLS"
SILENT = "silent"
NOBODY = "nobody"
CORRELATION_ID = 2_026
_SIZE = struct.Struct(">i")
_HTTP_REQUEST = b"GET / HTTP/1.0\r\n\r\n"
_TLS_ALERT = b"\x15\x03"


def speaks(host: str, port: int) -> str:
    """What is spoken there: KAFKA, HTTP, TLS, SILENT if nothing sensible is answered, NOBODY."""
    try:
        answer = _ask(host, port, _kafka_request())
    except OSError:
        return NOBODY
    if answer[4:8] == _SIZE.pack(CORRELATION_ID):
        return KAFKA
    if answer.startswith(_TLS_ALERT):
        return TLS
    try:
        answer = answer or _ask(host, port, _HTTP_REQUEST)
    except OSError:
        return SILENT
    return HTTP if answer.startswith(b"HTTP/") else SILENT


def _kafka_request() -> bytes:
    from anabranch.wire.api_keys import ApiKey
    from anabranch.wire.codec import encode_request
    from anabranch.wire.header import request_header

    request = request_header(ApiKey.API_VERSIONS, 0, CORRELATION_ID, "anabranch-doctor")
    request += encode_request(ApiKey.API_VERSIONS, 0, {})
    return _SIZE.pack(len(request)) + request


def _ask(host: str, port: int, request: bytes) -> bytes:
    """The first bytes of the answer; empty if there is none. Raises OSError if nobody listens."""
    with closing(socket.create_connection((host, port), CONNECT_SECONDS_MAX)) as link:
        link.settimeout(ANSWER_SECONDS_MAX)
        try:
            link.sendall(request)
            return link.recv(64)
        except OSError:  # Closed or silent: somebody who speaks something else.
            return b""


def broker(bootstrap: str, *, is_named: bool) -> Finding:
    """`is_named`: somebody says that a broker runs there; else it is only where one would."""
    from anabranch.cli.client import host_and_port_of

    spoken = [speaks(*host_and_port_of(address)) for address in bootstrap.split(",")]
    if KAFKA in spoken:
        return Finding("broker", "ok", f"a broker answers at {bootstrap}")
    if spoken == [NOBODY] * len(spoken):
        verdict = "fail" if is_named else "warn"
        return Finding(
            "broker", verdict, f"nothing answers at {bootstrap}", "start a node with `anabranch up`"
        )
    return Finding(
        "broker", "fail", f"{bootstrap} {_who(spoken)}", "give --bootstrap the Kafka port of a node"
    )


def _who(spoken: list[str]) -> str:
    if HTTP in spoken:
        return "is an HTTP port, not Kafka's"
    if TLS in spoken:
        return "is a TLS port, which needs a client with certificates"
    return "accepts connections and does not speak Kafka"


def listener(option: str, given: str) -> Finding:
    """Whether a node could listen there now."""
    from anabranch.config import host_and_port
    from anabranch.local_cluster.ports import is_free

    check = f"port {option}"
    try:
        host, port = host_and_port(given)
    except ValueError as error:
        raise click.UsageError(f"{option} {given} {error}") from None
    try:
        if is_free(host, port):
            return Finding(check, "ok", f"{given} is free")
    except AnabranchError as error:
        return Finding(check, "fail", str(error).rstrip("."))
    except OSError as error:  # A host that has no address.
        reason = error.strerror or error
        return Finding(check, "fail", f"{given} cannot be listened on ({reason})", f"choose another {option}")
    spoken = speaks(host, port)
    if spoken == KAFKA:
        return Finding(check, "ok", f"{given} is taken by a broker that runs")
    who = f"something that speaks {spoken}" if spoken in (HTTP, TLS) else "another process"
    return Finding(check, "fail", f"{given} is taken by {who}", f"stop it, or choose another {option}")
