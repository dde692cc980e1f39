"""The worst requests that fit the limits of the HTTP port, by route and by type of WebSocket message, with their cost.

`make hostile` sends each case to a running node while probes on other connections, in processes of their own, ask for
ApiVersions and for /healthz all the time.
"""

import base64
import contextlib
import json
import random
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from hostile.cost import Cost, Target, cost_of
from hostile.probes import Probes
from support.raw_socket import BINARY, CONTINUATION, PING, TEXT, RawSocket, frame

MIB = 2**20
BODY_BYTES = MIB - 64
HEAD_BYTES = 31 * 1024
SETTLE_SECONDS = 1.0
ANSWER_SECONDS_MAX = 60.0
PLAIN, WIDE, PACKED, TINY, HEADERS, CONTROL = "plain", "wide", "packed-by-http", "tiny", "headers", "control"
WIDE_PARTITIONS = 1024
JSON = "application/json"
LINES = "application/x-ndjson"
BYTES = "application/octet-stream"
WRITE = f"/v1/topics/{PLAIN}/records"


class Node(Protocol):
    @property
    def bootstrap(self) -> str: ...

    @property
    def http(self) -> str: ...


# --- how a case speaks -----------------------------------------------------------------------------------------


class Client:
    """Connections of one case, closed when it ends."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def connect(self) -> socket.socket:
        host, _, port = self._node.http.rpartition(":")
        link = socket.create_connection((host, int(port)), ANSWER_SECONDS_MAX)
        return self._stack.enter_context(link)

    def open_socket(self) -> RawSocket:
        return self._stack.enter_context(RawSocket(self._node.http))

    def ask(self, method: str, target: str, body: bytes = b"", kind: str = JSON, head: bytes = b"") -> str:
        """The status of one request on a connection of its own."""
        return self.exchange(request(method, target, body, kind, head + b"connection: close\r\n"))

    def exchange(self, data: bytes) -> str:
        """What is answered to these bytes before the connection closes, by status and length."""
        link = self.connect()
        with contextlib.suppress(ConnectionError):
            link.sendall(data)
        return answer_of(link)

    def tell(self, messages: list[bytes], *, until: int = 1) -> str:
        """What a WebSocket hears after these messages: the types of the first so many."""
        link = self.open_socket()
        try:
            for message in messages:
                link.send_frame(TEXT, message)
            return tally([str(link.hear()["type"]) for _ in range(until)])
        except (ConnectionError, EOFError) as error:
            return f"closed {error.args[0] if error.args else ''}"


def request(method: str, target: str, body: bytes = b"", kind: str = JSON, head: bytes = b"") -> bytes:
    lines = f"{method} {target} HTTP/1.1\r\nhost: localhost\r\n".encode() + head
    if body or method == "POST":
        lines += f"content-type: {kind}\r\ncontent-length: {len(body)}\r\n".encode()
    return lines + b"\r\n" + body


def answer_of(link: socket.socket) -> str:
    found, first = 0, b""
    with contextlib.suppress(ConnectionError):
        while piece := link.recv(MIB):
            first = first or piece[:12]
            found += len(piece)
    return f"{first[9:12].decode()} ({found} B)" if first else "closed"


def tally(words: list[str]) -> str:
    return ", ".join(f"{words.count(word)} {word}" for word in sorted(set(words)))


# --- the cases ---------------------------------------------------------------------------------------------------

Send = Callable[[Client], str]


class Case(NamedTuple):
    route: str
    name: str
    send: Send


def cases() -> Iterator[Case]:
    yield Case("(none)", "idle, as a measure of the machine", idle)
    for name, body in json_bodies().items():
        yield Case("POST …/records JSON", name, posting(body, JSON))
    for name, body in line_bodies().items():
        yield Case("POST …/records NDJSON", name, posting(body, LINES))
    yield from odd_bodies()
    yield from reads()
    yield from sessions()
    yield from heads()
    yield from sockets()


def idle(client: Client) -> str:
    time.sleep(1)
    return ""


def posting(body: bytes, kind: str) -> Send:
    return lambda client: client.ask("POST", WRITE, body, kind)


def filled(piece: str, join: str = ",", opening: str = "[", closing: str = "]") -> bytes:
    """As often as a body holds it."""
    count = (BODY_BYTES - len(opening) - len(closing)) // (len(piece.encode()) + len(join))
    return (opening + join.join([piece] * count) + closing).encode()


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


def fields(count: int) -> str:
    return "{" + ",".join(f'"{number:x}":0' for number in range(count)) + "}"


def json_bodies() -> dict[str, bytes]:
    headers = json.dumps([["h", "v"]] * 1000)
    return {
        "10,000 records": ("[" + ",".join(['{"value":"v"}'] * 10_000) + "]").encode(),
        "10,000 records with keys": json.dumps([{"key": f"{n}", "value": 0} for n in range(10_000)]).encode(),
        "most elements": filled("{}"),
        "most scalars": filled("0"),
        "most fields of one value": b'{"value":' + fields(90_000).encode() + b"}",
        "most unknown fields": fields(90_000).encode(),
        "most headers": filled('{"headers":' + headers + "}"),
        "most headers of one record": b'{"headers":' + filled('["",null]') + b"}",
        "deepest nesting": nested(BODY_BYTES // 2).encode(),
        "deepest nesting that is read": b'{"value":' + nested(900).encode() + b"}",
        "many deep values": filled('{"value":' + nested(900) + "}"),
        "longest string": json.dumps({"value": "x" * (BODY_BYTES - 20)}).encode(),
        "longest escaped string": b'{"value":"' + b"\\u0001" * (BODY_BYTES // 6 - 4) + b'"}',
        "longest key": json.dumps({"key": "k" * (BODY_BYTES - 20)}).encode(),
        "longest number": b'{"value":' + b"9" * (BODY_BYTES - 20) + b"}",
        "most numbers of 640 digits": b'{"value":' + filled("9" * 640)[:-1] + b"]}",
        "most floats": b'{"value":' + filled("1e9")[:-1] + b"]}",
        "longest base64": b'{"value_base64":"' + b"A" * (BODY_BYTES // 4 * 4 - 40) + b'"}',
        "no JSON, error at the end": b"[" + b" " * (BODY_BYTES - 2) + b"x",
    }


def line_bodies() -> dict[str, bytes]:
    headers = json.dumps([["h", "v"]] * 1000)
    return {
        "most lines": b"{}\n" * (4 * MIB // 3),
        "most empty lines": b"\n" * (4 * MIB),
        "most wrong lines": b"x\n" * (2 * MIB),
        "most headers": f'{{"headers":{headers}}}\n'.encode() * 400,
        "one line without end": b"x" * (4 * MIB),
        "deep lines": (nested(900) + "\n").encode() * 2000,
    }


def odd_bodies() -> Iterator[Case]:
    packed = b"content-encoding: gzip\r\n"
    route = "POST …/records bytes"
    yield Case(route, "longest value", posting(b"x" * BODY_BYTES, BYTES))
    many = b"".join(b"x-anabranch-header-%d: %s\r\n" % (number, b"v" * 300) for number in range(90))
    yield Case(route, "most headers", lambda client: client.ask("POST", WRITE, b"x", BYTES, many))
    yield Case(
        route,
        "longest key",
        lambda client: client.ask("POST", f"{WRITE}?key={'k' * (HEAD_BYTES - 500)}", b"x", BYTES),
    )
    yield Case(
        route,
        "compressed body that inflates a thousandfold",
        lambda client: client.ask("POST", WRITE, b"\x1f\x8b" + b"\0" * 1000, BYTES, packed),
    )
    yield Case(route, "chunks of one byte", lambda client: client.exchange(chunked(1, 300_000)))
    yield Case(route, "declared as 1 TB", lambda client: client.exchange(oversized()))
    yield Case(route, "200 bodies that do not end", slow_bodies)
    yield Case(route, "64 pipelined lists of 1,000 records", pipelined_posts)
    yield Case(route, "100 clients with 10,000 records each", many_posts)


def chunked(size: int, count: int) -> bytes:
    head = f"POST {WRITE} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {BYTES}\r\nconnection: close\r\n"
    piece = b"%x\r\n%s\r\n" % (size, b"x" * size)
    return head.encode() + b"transfer-encoding: chunked\r\n\r\n" + piece * count + b"0\r\n\r\n"


def oversized() -> bytes:
    head = f"POST {WRITE} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {BYTES}\r\ncontent-length: {10**12}\r\n\r\n"
    return head.encode() + b"x" * MIB


def slow_bodies(client: Client) -> str:
    head = f"POST {WRITE} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {BYTES}\r\ncontent-length: {BODY_BYTES}\r\n\r\n"
    links = [client.connect() for _ in range(200)]
    for link in links:
        link.sendall(head.encode() + b"x" * 100_000)
    time.sleep(1)
    return f"{len(links)} held"


def pipelined_posts(client: Client) -> str:
    body = ("[" + ",".join(['{"value":"v"}'] * 1000) + "]").encode()
    last = request("POST", WRITE, body, JSON, b"connection: close\r\n")
    return client.exchange(request("POST", WRITE, body) * 63 + last)


def many_posts(client: Client) -> str:
    body = ("[" + ",".join(['{"value":"v"}'] * 10_000) + "]").encode()
    links = [client.connect() for _ in range(100)]
    for link in links:
        link.sendall(request("POST", WRITE, body, JSON, b"connection: close\r\n"))
    return tally([answer_of(link)[:3] for link in links])


# --- reading -----------------------------------------------------------------------------------------------------


def reads() -> Iterator[Case]:
    def read(topic: str, query: str = "", head: bytes = b"") -> Send:
        target = f"/v1/topics/{topic}/partitions/0/records?max_bytes=8388608&max_records=10000{query}"
        return lambda client: client.ask("GET", target, head=head)

    route = "GET …/partitions/N/records"
    yield Case(route, "10,000 of many tiny records", read(TINY))
    yield Case(route, "the same from the middle of a batch", read(TINY, "&offset=30001"))
    yield Case(route, "the same as base64", read(TINY, "&values=base64"))
    yield Case(route, "batches of 60 MB in 6 kB", read(PACKED))
    yield Case(route, "one such value as it is", read(PACKED, head=b"accept: application/octet-stream\r\n"))
    yield Case(route, "by time in such batches", read(PACKED, "&time=1"))
    yield Case(route, "control characters", read(CONTROL))
    yield Case(route, "records of 10,000 headers", read(HEADERS))
    yield Case(
        route, "the same as a value with headers", read(HEADERS, head=b"accept: application/octet-stream\r\n")
    )
    yield Case(route, "64 pipelined of the largest", pipelined_reads)
    yield Case(route, "32 clients of the largest that take nothing", untaken_reads)
    yield Case(route, "1,000 long polls", long_polls)
    yield Case("GET /v1/topics", "all", lambda client: client.ask("GET", "/v1/topics?max=10000"))
    yield Case("GET /v1/topics/T", "1,024 partitions", lambda client: client.ask("GET", f"/v1/topics/{WIDE}"))
    yield Case("GET /v1/topics/T", "20 at once", lambda client: at_once(client, f"/v1/topics/{WIDE}", 20))
    yield Case("GET /metrics", "64 pipelined", lambda client: pipelined(client, "/metrics"))
    yield Case("GET /healthz", "64 pipelined", lambda client: pipelined(client, "/healthz"))
    for path in ("/", "/v1/demo", "/v1/demo.js", "/v1/anabranch.js"):
        yield Case(f"GET {path}", "64 pipelined", lambda client, path=path: pipelined(client, path))


LARGEST = f"/v1/topics/{CONTROL}/partitions/0/records?max_bytes=8388608&max_records=10000"


def pipelined(client: Client, target: str, count: int = 64) -> str:
    last = request("GET", target, head=b"connection: close\r\n")
    return client.exchange(request("GET", target) * (count - 1) + last)


def pipelined_reads(client: Client) -> str:
    return pipelined(client, LARGEST)


def untaken_reads(client: Client) -> str:
    links = [client.connect() for _ in range(32)]
    for link in links:
        link.sendall(request("GET", LARGEST) * 4)
    time.sleep(2)
    return f"{len(links)} held"


def long_polls(client: Client) -> str:
    target = f"/v1/topics/{WIDE}/partitions/%d/records?from=latest&wait_ms=60000"
    links = [client.connect() for _ in range(1000)]
    for number, link in enumerate(links):
        link.sendall(request("GET", target % (number % WIDE_PARTITIONS)))
    time.sleep(1)
    return f"{len(links)} held"


def at_once(client: Client, target: str, count: int) -> str:
    links = [client.connect() for _ in range(count)]
    for link in links:
        link.sendall(request("GET", target, head=b"connection: close\r\n"))
    return tally([answer_of(link)[:3] for link in links])


# --- sessions ----------------------------------------------------------------------------------------------------


def register(client: Client, group: str, topics: list[str]) -> str:
    """The path of a new session."""
    body = json.dumps({"topics": topics, "from": "earliest", "timeout_ms": 6000}).encode()
    link = client.connect()
    link.sendall(request("POST", f"/v1/groups/{group}/sessions", body, JSON, b"connection: close\r\n"))
    found = b""
    while piece := link.recv(MIB):
        found += piece
    return str(json.loads(found.partition(b"\r\n\r\n")[2])["records"]).removesuffix("/records")


def sessions() -> Iterator[Case]:
    rows = ",".join(f'{{"topic":"t","partition":{number},"offset":"1"}}' for number in range(20_000))
    bodies = {
        "most offsets": f'{{"offsets":[{rows}]}}'.encode(),
        "most offsets of one partition": b'{"offsets":'
        + filled('{"topic":"wide","partition":0,"offset":"1"}')[: BODY_BYTES - 20]
        + b"}",
        "deepest nesting": b'{"offsets":' + nested(500_000).encode() + b"}",
        "longest cursor": json.dumps({"cursor": "A" * (BODY_BYTES - 20)}).encode(),
        "cursor of most rows": json.dumps({"cursor": cursor(60_000)}).encode(),
    }
    route = "POST …/sessions"
    topics = json.dumps({"topics": ["x" * 240] * 4000}).encode()
    yield Case(route, "4,000 topics", lambda client: client.ask("POST", "/v1/groups/h/sessions", topics))
    same = json.dumps({"topics": [WIDE] * 100}).encode()
    yield Case(route, "one topic 100 times", lambda client: client.ask("POST", "/v1/groups/h/sessions", same))
    long = "/v1/groups/" + "g" * 20_000 + "/sessions"
    yield Case(route, "longest group", lambda client: client.ask("POST", long, same))
    yield Case(route, "100 members, one after the other", growing_group)
    for name, body in bodies.items():
        yield Case("POST …/commit", name, committing(body))
    yield Case("POST …/sessions/S/records", "1,024 partitions, all waiting", waiting_poll)
    yield Case("POST …/sessions/S/records", "longest cursor", polling(cursor(1400)))
    yield Case("POST …/sessions/S/records", "largest records", reading_poll)
    yield Case(
        "DELETE …/sessions/S", "longest name", lambda client: client.ask("DELETE", f"{long}/{'s' * 9000}")
    )


def cursor(rows: int) -> str:
    text = json.dumps({"wide": [[number, 1] for number in range(rows)]}, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def committing(body: bytes) -> Send:
    return lambda client: client.ask("POST", f"{register(client, name_of('c'), [WIDE])}/commit", body)


def polling(place: str) -> Send:
    return lambda client: client.ask(
        "POST", f"{register(client, name_of('p'), [WIDE])}/records?cursor={place}&commit=true"
    )


def waiting_poll(client: Client) -> str:
    return client.ask("POST", f"{register(client, name_of('w'), [WIDE])}/records?wait_ms=3000")


def reading_poll(client: Client) -> str:
    path = register(client, name_of("r"), [CONTROL, PACKED, HEADERS, TINY])
    return client.ask("POST", f"{path}/records?max_bytes=8388608&max_records=10000")


def growing_group(client: Client) -> str:
    group = name_of("grow")
    body = json.dumps({"topics": [WIDE, TINY], "timeout_ms": 6000}).encode()
    links = []
    for _ in range(100):
        link = client.connect()
        link.sendall(request("POST", f"/v1/groups/{group}/sessions", body, JSON, b"connection: close\r\n"))
        links.append(link)
    return tally([answer_of(link)[:3] for link in links])


def name_of(hint: str) -> str:
    return f"{hint}-{random.randrange(10**9)}"


# --- heads -------------------------------------------------------------------------------------------------------


def heads() -> Iterator[Case]:
    route = "any, its head"
    long = b"x: " + b"y" * HEAD_BYTES + b"\r\n"
    most = b"".join(b"x%d: y\r\n" % number for number in range(5000))
    query = "&".join(f"p{number}=1" for number in range(4000))
    yield Case(route, "longest header", lambda client: client.ask("GET", "/healthz", head=long))
    yield Case(route, "5,000 headers", lambda client: client.ask("GET", "/healthz", head=most))
    yield Case(route, "4,000 parameters", lambda client: client.ask("GET", f"/v1/topics?{query}"))
    yield Case(route, "longest path", lambda client: client.ask("GET", "/" + "%41" * 10_000))
    yield Case(route, "1,000 that do not end", half_heads)
    yield Case(route, "10,000 pipelined", lambda client: pipelined(client, "/healthz", 10_000))
    yield Case(route, "2,000 connections that say nothing", connections)
    for target in ("/healthz", "/metrics", "/v1/topics"):
        name = f"60 pipelined on each of 600 connections that take no answer, {target}"
        yield Case(route, name, partial(untaken_pipelines, target=target))


def half_heads(client: Client) -> str:
    links = [client.connect() for _ in range(1000)]
    for link in links:
        link.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * 20_000)
    time.sleep(1)
    return f"{len(links)} held"


def connections(client: Client) -> str:
    links = [client.connect() for _ in range(2000)]
    time.sleep(1)
    return f"{len(links)} held"


def untaken_pipelines(client: Client, target: str) -> str:
    links = [client.connect() for _ in range(600)]
    for link in links:
        link.sendall(request("GET", target) * 60)
    time.sleep(3)
    return f"{len(links)} held"


# --- WebSockets ----------------------------------------------------------------------------------------------------


def message(kind: str, **rest: Any) -> bytes:
    return json.dumps({"type": kind, **rest}).encode()


def largest_filter(number: int) -> dict[str, Any]:
    """As many conditions and values as are taken."""
    few = [{"header": f"h{each}", "prefix": f"{number}"} for each in range(62)]
    values = [f"{number}.{each}" for each in range(850)]
    return {"or": [*few, {"header": "h", "one_of": values}]}


def sockets() -> Iterator[Case]:
    subscribe = "WS subscribe"
    for name, wanted in {
        "filter of 60,000 values": {"or": [{"header": "h", "one_of": [f"{n:x}" for n in range(1000)]}] * 60},
        "filter of most conditions": {"or": [{"header": "h", "exists": True}] * 25_000},
        "deepest filter": json.loads('{"not":' * 400 + "{}" + "}" * 400),
    }.items():
        yield Case(subscribe, name, telling([message("subscribe", id=1, topic=PLAIN, filter=wanted)]))
    yield Case(subscribe, "most partitions", telling([message("subscribe", id=1, topic=WIDE)]))
    timed = [message("subscribe", id=n, topic=WIDE, **{"from": {"time": 1}}) for n in range(4)]
    yield Case(subscribe, "most partitions, by time, four times", telling(timed, 4))
    offsets = {str(number): "5" for number in range(1024)}
    placed = [message("subscribe", id=n, topic=WIDE, **{"from": {"offset": offsets}}) for n in range(4)]
    yield Case(subscribe, "most offsets, four times", telling(placed, 4))
    filters = [message("subscribe", id=n, topic=PLAIN, filter=largest_filter(n)) for n in range(100)]
    yield Case(subscribe, "100 with the largest filter", telling(filters, 100))
    yield Case(subscribe, "100 with the largest filter, on 20 sockets", many_filters)
    yield Case(subscribe, "100 that read records of 10,000 headers by filter", filtering)
    yield Case(subscribe, "100 that read packed records", packed_readers)
    yield Case(subscribe, "20 sockets that take nothing", untaken_sockets)
    groups = [message("subscribe", id=n, topic=WIDE, group=name_of("ws")) for n in range(4)]
    yield Case(subscribe, "4 groups of most partitions", telling(groups, 4))
    yield Case("WS publish", "20,000 at once", many_publishes)
    yield Case(
        "WS publish",
        "most headers",
        telling([message("publish", id=1, topic=PLAIN, headers=[["", None]] * 999)] * 50, 50),
    )
    yield Case(
        "WS publish",
        "longest value",
        telling([message("publish", id=1, topic=PLAIN, value="x" * (BODY_BYTES - 100))]),
    )
    yield Case(
        "WS publish",
        "most fields",
        telling([b'{"type":"publish","id":1,"topic":"plain","value":' + fields(90_000).encode() + b"}"]),
    )
    for kind in ("credit", "ack", "unsubscribe"):
        wrong = [message(kind, id=1, **({"records": 1} if kind == "credit" else {}))] * 3000
        yield Case(f"WS {kind}", "3,000 at once", telling(wrong, 3000))
    yield Case("WS any", "deepest nesting", telling([nested(500_000).encode()]))
    yield Case("WS any", "most elements", telling([filled("{}")]))
    yield Case("WS any", "longest message and one byte", telling([b" " * (MIB + 1)]))
    yield Case("WS any", "200,000 pings", flood(frame(PING, b"") * 200_000))
    yield Case(
        "WS any",
        "200,000 empty pieces",
        flood(frame(TEXT, b"{", final=False) + frame(CONTINUATION, b"", final=False) * 200_000),
    )
    yield Case("WS any", "bytes", flood(frame(BINARY, b"\0" * BODY_BYTES)))
    yield Case("WS any", "100 messages that do not end", half_messages)


def telling(messages: list[bytes], until: int = 1) -> Send:
    return lambda client: client.tell(messages, until=until)


def many_filters(client: Client) -> str:
    heard: list[str] = []
    for part in range(20):
        link = client.open_socket()
        for number in range(100):
            link.send_frame(
                TEXT, message("subscribe", id=number, topic=PLAIN, filter=largest_filter(100 * part + number))
            )
        heard += [str(link.hear()["type"]) for _ in range(100)]
    return tally(heard)


def filtering(client: Client) -> str:
    conditions = [{"not": {"header": f"h{number}", "exists": True}} for number in range(30)]
    link = client.open_socket()
    for number in range(100):
        wanted = {"and": [*conditions, {"header": "z", "equals": str(number)}]}
        link.send_frame(
            TEXT, message("subscribe", id=number, topic=HEADERS, filter=wanted, **{"from": "earliest"})
        )
    heard = tally([str(link.hear()["type"]) for _ in range(100)])
    time.sleep(3)
    return heard


def packed_readers(client: Client) -> str:
    link = client.open_socket()
    for number in range(100):
        link.send_frame(
            TEXT, message("subscribe", id=number, topic=PACKED, **{"from": {"offset": str(number % 8)}})
        )
    return tally([str(link.hear()["type"]) for _ in range(150)])


def untaken_sockets(client: Client) -> str:
    for _ in range(20):
        link = client.open_socket()
        for number in range(100):
            link.send_frame(TEXT, message("subscribe", id=number, topic=CONTROL, **{"from": "earliest"}))
    time.sleep(3)
    return "20 held"


def many_publishes(client: Client) -> str:
    link = client.open_socket()
    data = frame(TEXT, message("publish", id=1, topic=PLAIN, value="v")) * 20_000
    link.link.setblocking(False)
    sent = heard = 0
    view = memoryview(data)
    end = time.monotonic() + ANSWER_SECONDS_MAX
    while heard < 20_000 * 40 and time.monotonic() < end and (sent < len(view) or heard < 20_000 * 60):
        with contextlib.suppress(BlockingIOError):
            sent += link.link.send(view[sent : sent + 65536]) if sent < len(view) else 0
        try:
            heard += len(link.link.recv(65536))
        except BlockingIOError:
            time.sleep(0.001)
    return f"{heard} B heard"


def flood(data: bytes) -> Send:
    def send(client: Client) -> str:
        link = client.open_socket()
        with contextlib.suppress(OSError):
            link.link.sendall(data)
        time.sleep(0.5)
        return "sent"

    return send


def half_messages(client: Client) -> str:
    for _ in range(100):
        client.open_socket().link.sendall(frame(TEXT, b"x" * BODY_BYTES)[: BODY_BYTES // 2])
    time.sleep(1)
    return "100 held"


# --- what the topics hold ------------------------------------------------------------------------------------------


def prepare(node: Node) -> None:
    """Topics whose records are as bad to read as producers can make them."""
    admin = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})
    topics = [NewTopic(name, 1) for name in (PLAIN, PACKED, TINY, HEADERS, CONTROL)]
    for made in admin.create_topics([*topics, NewTopic(WIDE, WIDE_PARTITIONS)]).values():
        made.result(60)
    producer = Producer(
        {
            "bootstrap.servers": node.bootstrap,
            "compression.type": "zstd",
            "message.max.bytes": 80_000_000,
            "linger.ms": 50,
            "batch.size": 900_000,
            "log_level": 0,
        }
    )
    for _ in range(8):
        producer.produce(PACKED, b"\0" * 60_000_000)
        producer.flush(60)
    for _ in range(60_000):
        producer.produce(TINY, b"")
        producer.poll(0)
    many = [(f"h{number % 100}", b"") for number in range(10_000)]
    for _ in range(100):
        producer.produce(HEADERS, b"", headers=many)
    for _ in range(12):
        producer.produce(CONTROL, b"\x01" * 1_000_000)
    producer.flush(60)


# --- measuring -------------------------------------------------------------------------------------------------------


def outcome_of(node: Node, case: Case) -> str:
    """What became of a case; its connections are closed."""
    with Client(node) as client:
        try:
            return case.send(client)
        except (OSError, EOFError) as error:
            return type(error).__name__


def costs(node: Target, probes: Probes, only: Sequence[str] = ()) -> Iterator[tuple[str, Cost]]:
    """Route and cost of each case, in the order in which they are sent; `only`: parts of the routes that are meant."""
    prepare(node)
    probes.wait_until_calm()  # A cluster is busy for a while with a thousand new partitions.
    for case in cases():
        if not only or any(part in case.route for part in only):
            send = partial(outcome_of, node, case)
            yield case.route, cost_of(node, probes, f"{case.route}, {case.name}", send, SETTLE_SECONDS)
