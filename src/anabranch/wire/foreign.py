"""Who knocks at a Kafka port without speaking Kafka, and one plain sentence for them.

Asked with the first bytes of a connection when they make no sense as a size. Anything else that is not
Kafka is simply closed.
"""

HTTP = "HTTP"
TLS = "TLS"
SSH = "SSH"

FIRST_BYTES: dict[bytes, str] = {
    b"GET ": HTTP,
    b"POST": HTTP,
    b"PUT ": HTTP,
    b"HEAD": HTTP,
    b"OPTI": HTTP,
    b"DELE": HTTP,
    b"PATC": HTTP,
    b"CONN": HTTP,
    b"PRI ": HTTP,
    b"SSH-": SSH,
}

HTTP_ANSWER = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\n"
    b"Content-Length: %d\r\nConnection: close\r\n\r\n%s"
)


def foreign_protocol(first_bytes: bytes | bytearray | memoryview) -> str | None:
    """`HTTP`, `TLS`, `SSH`, or None for what may be Kafka, or is not known yet."""
    head = bytes(first_bytes[:4])
    if head[:2] == b"\x16\x03":
        return TLS
    return FIRST_BYTES.get(head)


def foreign_answer(protocol: str) -> bytes:
    """What to send back before closing: a sentence a person can act on."""
    sentence = f"This port speaks Kafka's protocol, not {protocol}. Point a Kafka client at it.\n".encode()
    return HTTP_ANSWER % (len(sentence), sentence) if protocol == HTTP else sentence
