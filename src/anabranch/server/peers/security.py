"""PeerSecurity: by what brokers know each other: a secret they share, certificates of one authority, or both."""

import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from anabranch.config import NodeSettings
from anabranch.config.private_file import check_private, read_private
from anabranch.errors import InvalidConfigError
from anabranch.server.peers.handshake import Cause, HandshakeError

SECRET_BYTES_MIN = 16
SECRET_BYTES_MAX = 4096
FILE_BYTES_MAX = 2 * SECRET_BYTES_MAX
"""With the spaces and line ends around the secret."""


@dataclass(frozen=True, slots=True)
class PeerSecurity:
    secret: bytes = b""
    server_context: ssl.SSLContext | None = None
    client_context: ssl.SSLContext | None = None
    name: str | None = None
    """What the certificate of every broker has among its names; `*` stands for anything."""

    def check_certificate(self, certificate: Mapping[str, Any] | None) -> None:
        """Raises HandshakeError for one of our authority that is not a broker's. Its names are not told to others."""
        if self.name is None or self.server_context is None:
            return
        names = list(names_in(certificate or {}))
        if not any(fnmatchcase(name.lower(), self.name.lower()) for name in names):
            raise HandshakeError(
                Cause.CERTIFICATE,
                "the certificate of the other side is valid, but has no name that peer.tls.name allows: give brokers "
                "certificates with such a name, or change the setting on all brokers.",
            )


def names_in(certificate: Mapping[str, Any]) -> Iterator[str]:
    """The DNS names and URIs of a certificate as `ssl` gives it, or its common name if it has neither."""
    said = [name for kind, name in certificate.get("subjectAltName", ()) if kind in ("DNS", "URI")]
    if said:
        yield from said
        return
    for part in certificate.get("subject", ()):
        for kind, name in part:
            if kind == "commonName":
                yield name


def load_security(settings: NodeSettings) -> PeerSecurity:
    """What the settings name, read from its files. Raises InvalidConfigError."""
    secret = read_secret(settings.cluster_secret_file) if settings.cluster_secret_file else b""
    cert, key, ca = settings.peer_tls_cert, settings.peer_tls_key, settings.peer_tls_ca
    if key:
        check_private("peer.tls.key", key)
    contexts = mutual_tls(cert, key, ca) if cert and key and ca else (None, None)
    return PeerSecurity(secret, contexts[0], contexts[1], settings.peer_tls_name)


def read_secret(path: str) -> bytes:
    """The secret in a file, without the spaces and line ends around it."""
    secret = read_private("cluster.secret.file", path, FILE_BYTES_MAX).strip()
    if not SECRET_BYTES_MIN <= len(secret) <= SECRET_BYTES_MAX:
        raise InvalidConfigError(
            f"The secret in {path} has {len(secret)} bytes; it needs {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX}: make "
            "one with `openssl rand -hex 32`, the same for all brokers."
        )
    return secret


def mutual_tls(cert: str, key: str, ca: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Contexts for accepting and for dialling. Whoever has a certificate of this authority is a broker of the cluster,
    under whatever host name, unless `peer.tls.name` says which names brokers have."""
    contexts = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for context in contexts:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        try:
            context.load_cert_chain(cert, key)
            context.load_verify_locations(ca)
        except (OSError, ssl.SSLError) as error:
            raise InvalidConfigError(
                f"peer.tls.cert={cert}, peer.tls.key={key} and peer.tls.ca={ca} cannot be used together ({error}): "
                "check that all three are PEM files, and the key that of the certificate."
            ) from None
    return contexts
