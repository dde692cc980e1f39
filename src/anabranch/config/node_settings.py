"""What a node is started with: every setting with its default, bounds and one sentence.

`NodeSettings.load` is the only way in for values that people wrote; it refuses by name what is unknown, out
of bounds, or dangerous (an address that others can reach while nobody has to log in). Settings never change
while a node runs, so any thread may read them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from anabranch.config.setting import (
    INT_MAX,
    LONG_MAX,
    ConfigEntry,
    ConfigSource,
    Setting,
    Synonym,
    Value,
    attribute_of,
    check_address,
    check_gzip_level,
    check_http_address,
    check_origins,
    choice,
    find_setting,
    flag,
    host_and_port,
    http_host_and_port,
    is_loopback,
    long,
    names,
    ratio,
    settings_of,
    text,
    text_of,
    whole,
)
from anabranch.errors import InvalidConfigError

MIB = 2**20
CODECS = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
DAY_MS = 86_400_000
PARTITIONS_MAX = 10_000
"""Partitions of one topic: each costs a folder and some memory, and nobody means a million."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """Settings of one node. The dotted name of an attribute has dots for its underscores."""

    # --- where the node is ---
    broker_id: int = whole(0, "The number of this node in metadata.")
    listen: str = text(
        "127.0.0.1:9092", "Where Kafka clients connect; port 0 picks a free one.", check=check_address
    )
    advertise: str | None = text(
        None, "The address told to clients; unset: the one each client connected to.", check=check_address
    )
    http: str | None = text(
        None,
        "Where the gateway, /metrics and /healthz answer by HTTP; a port alone is one of 127.0.0.1; unset: nowhere.",
        check=check_http_address,
    )
    allow_unauthenticated: bool = flag(
        False, "Bind an address that other machines can reach, without any login."
    )
    data_dir: str = text("anabranch-data", "The folder of everything this node keeps.")

    # --- the other brokers of its cluster ---
    peer_listen: str | None = text(
        None,
        "Where the other brokers connect; port 0 picks a free one; unset: this node is alone.",
        check=check_address,
    )
    peer_advertise: str | None = text(
        None, "The address told to the other brokers; unset: peer.listen.", check=check_address
    )
    peer_join: tuple[str, ...] = names(
        (), "Peer addresses of brokers whose cluster to join; the first broker of one needs none."
    )
    cluster_secret_file: str | None = text(
        None, "A file with the secret by which brokers know each other: the same 16 bytes or more for all."
    )
    peer_tls_cert: str | None = text(
        None, "The certificate (PEM) of this broker on peer links; with it every link is TLS on both sides."
    )
    peer_tls_key: str | None = text(None, "The key of that certificate.")
    peer_tls_ca: str | None = text(
        None, "The authority of the brokers' certificates: whoever has one of it may be a broker."
    )
    peer_tls_name: str | None = text(
        None,
        "Only a certificate with such a DNS name, URI or common name is a broker's (broker-*.example.com). Set it "
        "where the authority signs for others too.",
    )
    broker_rack: str | None = text(None, "Where this broker stands; copies are spread over racks.")

    # --- the gateway on the HTTP port ---
    gateway_origins: tuple[str, ...] = names(
        (),
        "Origins whose pages may use the gateway (https://app.example.com), and names by which it is "
        "reached (http://broker-1:8080); *: any. A page that the node itself has served always may.",
        check=check_origins,
    )
    gateway_token_file: str | None = text(
        None,
        "A file with the token that clients of the gateway must show (Authorization: Bearer ...); unset: none.",
    )
    gateway_request_bytes_max: int = whole(
        MIB, "The largest body, line of NDJSON or WebSocket message; a larger one is refused.", low=1024
    )
    gateway_connections_max: int = whole(
        10_000, "HTTP and WebSocket connections at once; more are refused.", low=1
    )
    gateway_linger_ms: int = whole(
        5,
        "How long a record waits for company in its batch while no other batch of its partition is under way.",
        high=10_000,
    )
    gateway_batch_bytes_max: int = whole(
        MIB, "The size at which a batch of gathered records is written without waiting for more.", low=1024
    )
    gateway_compression: str = choice(
        "lz4", "How batches of gathered records are compressed.", "lz4", "zstd", "none"
    )
    gateway_poll_ms_max: int = whole(60_000, "The longest time that a request may wait for records.")
    gateway_request_timeout_ms: int = whole(
        8000,
        "How long an HTTP request or a publish by WebSocket may go unanswered, besides the time that it asks to wait "
        "for records; then it is answered with what it waited for (503, or 504 if it may have been done).",
        low=100,
        high=600_000,
    )
    gateway_filter_bytes_max: int = whole(
        16 * 1024, "The longest filter of a WebSocket subscription, as JSON.", low=64
    )
    gateway_socket_subscription_bytes_max: int = whole(
        8 * MIB,
        "Memory of all subscriptions of one WebSocket, filters included; a subscription beyond it is refused.",
        low=64 * 1024,
    )
    gateway_subscription_bytes_max: int = long(
        128 * MIB,
        "Memory of the subscriptions of all WebSockets of a node; beyond, more are refused.",
        low=MIB,
    )
    gateway_subscriber_bytes_max: int = whole(
        MIB, "Bytes that may wait for a WebSocket to take them; beyond, it gets no more records.", low=1024
    )

    # --- how safe a record is ---
    flush: str = choice(
        "always",
        "When records are synced to disk: before the acknowledgement, every flush.interval.ms, or when the "
        "operating system likes.",
        "always",
        "interval",
        "os",
    )
    flush_interval_ms: int = whole(1000, "The longest time between two syncs under flush=interval.", low=1)
    min_insync_replicas: int = whole(
        1, "Copies without which acks=all is refused; a node alone keeps one, a cluster up to three.", low=1
    )
    ring_acks1: str = choice(
        "safe",
        "What acks=1 waits for where several brokers keep a partition: a second copy as with acks=all, or the leader's "
        "own alone, which is lost with it.",
        "safe",
        "leader",
    )
    produce_forward: bool = flag(
        False,
        "Take records for partitions that other brokers lead, and hand them over, instead of naming the leader.",
    )

    # --- topics ---
    num_partitions: int = whole(
        1, "Partitions of a topic that does not say how many.", low=1, high=PARTITIONS_MAX
    )
    default_replication_factor: int = whole(
        0,
        "Copies of a topic that does not say how many; 0: three, or as many as there are brokers.",
        low=0,
        high=3,
    )
    auto_create_topics_enable: bool = flag(True, "Create a topic when a client first asks for it.")
    delete_topic_enable: bool = flag(True, "Let clients delete topics.")
    message_max_bytes: int = whole(1_048_588, "The largest batch a topic accepts.")
    compression_type: str = choice("producer", "How batches are kept: as sent, or recompressed.", *CODECS)
    compression_gzip_level: int = whole(
        -1, "The level when compression.type is gzip.", low=-1, high=9, check=check_gzip_level
    )
    compression_lz4_level: int = whole(9, "The level when compression.type is lz4.", low=1, high=17)
    compression_zstd_level: int = whole(3, "The level when compression.type is zstd.", low=-131_072, high=22)

    # --- the log ---
    log_retention_ms: int | None = long(None, "How long records are kept, in ms; -1: for ever.", low=-1)
    log_retention_minutes: int | None = whole(
        None, "The same in minutes, if log.retention.ms is unset.", low=-1
    )
    log_retention_hours: int = whole(168, "The same in hours, if neither of the two is set.", low=-1)
    log_retention_bytes: int = long(-1, "Bytes kept per partition; -1: no limit.", low=-1)
    log_retention_check_interval_ms: int = long(
        300_000, "How often retention looks for segments to drop.", low=1
    )
    log_segment_bytes: int = whole(1_073_741_824, "The size at which a new segment begins.", low=1024)
    log_roll_ms: int | None = long(None, "The age at which a new segment begins, in ms.", low=1)
    log_roll_hours: int = whole(168, "The same in hours, if log.roll.ms is unset.", low=1)
    log_index_interval_bytes: int = whole(4096, "Bytes of log between two entries of an index.")
    log_cleanup_policy: tuple[str, ...] = names(
        ("delete",), "Drop old segments, keep the last value of each key, or both.", "delete", "compact"
    )
    log_message_timestamp_type: str = choice(
        "CreateTime", "Whose time a record carries: the producer's or ours.", "CreateTime", "LogAppendTime"
    )
    log_message_timestamp_before_max_ms: int = long(
        LONG_MAX, "How far behind our clock a record's time may be."
    )
    log_message_timestamp_after_max_ms: int = long(
        3_600_000, "How far ahead of our clock a record's time may be."
    )

    # --- the cleaner of compacted topics ---
    log_cleaner_enable: bool = flag(True, "Clean compacted topics in the background.")
    log_cleaner_backoff_ms: int = long(
        15_000, "How long the cleaner rests when there is nothing to clean.", low=1
    )
    log_cleaner_dedupe_buffer_size: int = long(
        32 * MIB, "Memory of the cleaner's map of keys. Kafka takes 128 MiB; ours starts small.", low=MIB
    )
    log_cleaner_delete_retention_ms: int = long(DAY_MS, "How long a tombstone stays readable.")
    log_cleaner_min_cleanable_ratio: float = ratio(
        0.5, "The share of uncleaned bytes that makes cleaning worth it."
    )
    log_cleaner_min_compaction_lag_ms: int = long(0, "How long a record is left alone by the cleaner.")
    log_cleaner_max_compaction_lag_ms: int = long(
        LONG_MAX, "How long a record may wait for the cleaner.", low=1
    )

    # --- mode branch ---
    branch_silence_ms: int = whole(
        1500,
        "Topics in mode branch: a broker that does not answer for so long is on another side of a split.",
        low=300,
    )
    branch_disk_free_min_bytes: int = long(
        256 * MIB, "With less room on its disk a broker lets others write to topics in mode branch. 0: never."
    )

    # --- the object store ---
    object_store: str | None = text(
        None,
        "Where topics with anabranch.mode=object are kept: file:///PATH, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or "
        "az://CONTAINER/PREFIX, the same for all brokers; unset: there are no such topics.",
    )
    object_credentials_file: str | None = text(
        None,
        "A file of NAME=VALUE lines with the store's credentials, which only its owner may read; unset: those of the "
        "environment (AWS_ACCESS_KEY_ID ...).",
    )
    object_timeout_ms: int = whole(
        10_000, "How long one request to the store may take, and a second more for each MiB.", low=100
    )
    object_gather_ms: int = whole(
        100, "How long a broker gathers records into one object before it is written."
    )
    object_gather_bytes: int = whole(4 * MIB, "The size at which it is written sooner.", low=1024)
    object_puts_max: int = whole(4, "Objects a broker writes to the store at the same time.", low=1, high=64)
    object_cache_bytes: int = long(128 * MIB, "Memory for what was read from or written to the store.")
    object_cache_disk_bytes: int = long(
        1024 * MIB, "Disk for the same, below data.dir; it may be deleted at any time. 0: none."
    )
    object_merge_bytes: int = long(
        64 * MIB, "The size from which objects are large enough not to be merged.", low=1024
    )
    object_collect_ms: int = long(
        3_600_000, "How long an object stays in the store that nobody needs any more.", low=1
    )
    object_snapshot_ms: int = long(
        60_000,
        "How often what the cluster has agreed on is written to the store, for `anabranch cluster restore`.",
        low=1,
    )

    # --- groups ---
    group_min_session_timeout_ms: int = whole(
        6000, "The shortest session timeout a group member may ask for.", low=1
    )
    group_max_session_timeout_ms: int = whole(1_800_000, "The longest one.", low=1)
    group_initial_rebalance_delay_ms: int = whole(
        100,
        "How long an empty group waits for more members. Kafka waits 3000 so that a fleet started at once is "
        "assigned once; on one node a test or a laptop should not pause for that.",
    )
    group_max_size: int = whole(INT_MAX, "Members one group may have.", low=1)
    group_memory_bytes_max: int = long(
        64 * MIB,
        "What the members of all groups may take: their metadata, their assignments, 1 KiB each and 150 bytes for each "
        "protocol; half of it for members of one host. Further members are refused.",
        low=MIB,
    )
    offsets_topic_num_partitions: int = whole(
        16,
        "Partitions of the log of committed offsets, fixed once it exists. Kafka makes 50, for many brokers.",
        low=1,
        high=PARTITIONS_MAX,
    )
    offsets_memory_bytes_max: int = long(
        128 * MIB,
        "What the committed offsets of all groups may take, at 400 bytes each besides their metadata and 2 KiB for "
        "each group. Beyond, only partitions that have an offset already can be committed.",
        low=MIB,
    )
    offsets_mode: str = choice(
        "ring",
        "How a cluster keeps committed offsets, fixed once they are: ring, or branch, so that groups go on on every "
        "side of a split; then the lesser of both sides' commits counts.",
        "ring",
        "branch",
    )
    offsets_retention_minutes: int = whole(10_080, "How long an empty group's offsets are kept.", low=1)
    offset_metadata_max_bytes: int = whole(4096, "The longest note a client may commit with an offset.")

    # --- producers and fetch sessions ---
    producer_id_expiration_ms: int = whole(
        DAY_MS, "How long a silent producer's sequence is remembered.", low=1
    )
    producer_id_idle_ms: int = whole(
        330_000,
        "How long a producer is silent before another one may take its place where room is short; longer than clients "
        "repeat a batch (delivery.timeout.ms, 120 s unless set otherwise; librdkafka's message.timeout.ms, 300 s).",
        low=1,
    )
    producer_ids_per_partition_max: int = whole(
        50_000, "Idempotent producers remembered in one partition; the same on all brokers.", low=1
    )
    producer_ids_max: int = whole(
        150_000,
        "Idempotent producers remembered in all partitions of a node, at about 360 bytes each.",
        low=1,
    )
    fetch_max_bytes: int = whole(57_671_680, "The most bytes one fetch answers with.", low=1024)
    max_incremental_fetch_session_cache_slots: int = whole(1000, "Fetch sessions remembered at once.")
    partitions_max: int = whole(
        10_000,
        "Partitions that one broker keeps, of all topics, at about 7 kB of memory each. A topic that would bring more "
        "is refused with INVALID_PARTITIONS; __consumer_offsets is exempt.",
        low=100,
    )
    fetch_session_partitions_max: int = whole(
        100_000,
        "Partitions in all fetch sessions together. A consumer that finds no room is served without a session.",
        low=1000,
    )
    fetch_waiting_partitions_max: int = whole(
        100_000,
        "Partitions that all Fetch requests wait for together, the first 32 of each not counted, at about 300 bytes "
        "each. Beyond, the address that waits for most is answered early: with the records that are there, or after "
        "half a second with none.",
        low=1000,
    )

    # --- limits ---
    socket_request_max_bytes: int = whole(
        104_857_600, "The largest request; a larger one closes the link.", low=1024
    )
    request_control_bytes_max: int = whole(
        16 * MIB,
        "The largest request that carries no records, which is every API but Produce; a larger one closes the link.",
        low=64 * 1024,
    )
    request_elements_max: int = whole(
        20_000,
        "Array elements and tagged fields of one request, nested ones included. One with more is answered with "
        "INVALID_REQUEST, or closes the link where the API has no error code for the whole of it.",
        low=1000,
    )
    request_answer_bytes_max: int = whole(
        16 * MIB,
        "Bytes that one response may hold, fetched records not included; rows beyond that carry an error.",
        low=64 * 1024,
    )
    socket_send_buffer_bytes: int = whole(
        256 * 1024,
        "The system's buffer of a socket we send on; -1: as large as the system lets it grow, which suits far "
        "readers and costs near ones more.",
        low=-1,
    )
    request_memory_bytes_max: int = long(
        256 * MIB,
        "Requests of over 64 KiB, of all connections: each counts as a whole once its first 64 KiB have arrived. "
        "Beyond, connections wait, addresses take turns, and requests that would take over 15 s to arrive are closed, "
        "first of the addresses with most.",
        low=MIB,
    )
    append_queue_bytes_max: int = long(
        64 * MIB, "Bytes waiting for the writer; beyond, producers wait.", low=MIB
    )
    batch_decompressed_bytes_max: int = long(64 * MIB, "What one batch may unpack to.", low=1024)
    unpack_memory_bytes_max: int = long(
        128 * MIB, "What the batches of all connections may unpack to at once; further batches wait.", low=MIB
    )
    connection_requests_max: int = whole(
        64, "Unanswered requests per connection; beyond, it is not read.", low=1
    )
    connection_response_bytes_max: int = whole(
        8 * MIB, "Answer bytes waiting per connection; beyond, it is not read.", low=1024
    )
    max_connections: int | None = whole(
        None, "Connections at once; unset: three eighths of the open-file limit.", low=1
    )
    max_connections_per_ip: int | None = whole(
        None,
        "Connections from one address (IPv6: from one /64) at once, to each port; unset: half of what the port takes, "
        "so that nobody can take them all.",
        low=1,
    )
    connections_max_idle_ms: int = long(600_000, "A connection silent for this long is closed.", low=1)
    log_open_files_max: int | None = whole(
        None, "Segment files open at once; unset: half of the open-file limit.", low=8
    )
    worker_threads: int = whole(4, "Threads that sync, verify, decompress and clean.", low=1, high=256)
    scrub_bytes_per_second: int = long(8 * MIB, "How fast segments are re-read for rot; 0: not at all.")

    given: frozenset[str] = frozenset()
    """Dotted names of what was set rather than left at its default."""

    @classmethod
    def load(cls, overrides: Mapping[str, object] | None = None) -> Self:
        """Settings from what people wrote: strings, or the values of a TOML file."""
        overrides = overrides or {}
        parsed: dict[str, Value] = {}
        for name, given in overrides.items():
            setting = find_setting(NODE_SETTINGS, name, _KAFKA_NAMES, "setting")
            parsed[attribute_of(name)] = setting.parse(given)
        settings = cls(**parsed, given=frozenset(overrides))  # type: ignore[arg-type] # parsed by kind
        settings._check_together()
        return settings

    def _check_together(self) -> None:
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms:
            raise InvalidConfigError(
                "group.min.session.timeout.ms is above group.max.session.timeout.ms: lower the first."
            )
        if self.request_memory_bytes_max < self.socket_request_max_bytes:
            raise InvalidConfigError(
                "request.memory.bytes.max is below socket.request.max.bytes, so the largest request could "
                "never be read: raise the first or lower the second."
            )
        if self.unpack_memory_bytes_max < self.batch_decompressed_bytes_max:
            raise InvalidConfigError(
                "unpack.memory.bytes.max is below batch.decompressed.bytes.max, so the largest batch could never be "
                "unpacked: raise the first or lower the second."
            )
        self._check_peers()
        self._check_objects()
        if not self.allow_unauthenticated:
            self._check_reach("listen", host_and_port(self.listen)[0], "")
            if self.http and self.gateway_token_file is None:
                self._check_reach("http", http_host_and_port(self.http)[0], ", set gateway.token.file")

    def _check_reach(self, name: str, host: str, else_do: str) -> None:
        if not is_loopback(host):
            raise InvalidConfigError(
                f"{name}={self.value_of(name)} can be reached from other machines and nobody has to log in: bind "
                f"127.0.0.1{else_do}, or say --allow-unauthenticated if that is meant."
            )

    def _check_peers(self) -> None:
        tls = self.peer_tls_cert, self.peer_tls_key, self.peer_tls_ca
        if any(tls) and not all(tls):
            raise InvalidConfigError(
                "peer.tls.cert, peer.tls.key and peer.tls.ca belong together: set all three."
            )
        if self.peer_tls_name and not all(tls):
            raise InvalidConfigError(
                "peer.tls.name is about certificates: set peer.tls.cert, peer.tls.key and peer.tls.ca too."
            )
        self._check_join()
        if not self.peer_listen:
            return
        host, _ = host_and_port(self.peer_listen)
        if not self.cluster_secret_file and not all(tls):
            self._check_open_peer_port(host)
        if host in ("0.0.0.0", "::") and not self.peer_advertise:
            raise InvalidConfigError(
                f"peer.listen={self.peer_listen} is no address that others could dial: say by peer.advertise where "
                "they reach this broker."
            )

    def _check_objects(self) -> None:
        if self.object_store is None:
            return
        from anabranch.config.store_url import parse_store_url

        parse_store_url(self.object_store)
        if self.object_gather_bytes > self.append_queue_bytes_max:
            raise InvalidConfigError(
                "object.gather.bytes is above append.queue.bytes.max, so an object could never be gathered: lower the "
                "first or raise the second."
            )

    def _check_join(self) -> None:
        if self.peer_join and not self.peer_listen:
            raise InvalidConfigError(
                "peer.join without peer.listen: the other brokers must be able to connect to this one, so say where."
            )
        for address in self.peer_join:
            if problem := check_address(address):
                raise InvalidConfigError(f"peer.join: {address} {problem}")

    def _check_open_peer_port(self, host: str) -> None:
        """Whoever can speak on the peer port can be a broker, and change or destroy everything."""
        if not is_loopback(host):
            raise InvalidConfigError(
                f"peer.listen={self.peer_listen} can be reached from other machines, and brokers there could not be "
                "told from strangers: give all brokers one cluster.secret.file (openssl rand -hex 32), or peer.tls.*."
            )
        if not self.allow_unauthenticated:
            raise InvalidConfigError(
                f"peer.listen={self.peer_listen} would take anybody on this machine for a broker: give all brokers one "
                "cluster.secret.file (openssl rand -hex 32), or say --allow-unauthenticated if that is meant."
            )

    # --- what follows from several settings ---

    @property
    def retention_ms(self) -> int:
        """log.retention.ms, else minutes, else hours, as Kafka ranks them; -1 keeps for ever."""
        if self.log_retention_ms is not None:
            return self.log_retention_ms
        if self.log_retention_minutes is not None:
            return self.log_retention_minutes * 60_000 if self.log_retention_minutes >= 0 else -1
        return self.log_retention_hours * 3_600_000 if self.log_retention_hours >= 0 else -1

    @property
    def segment_ms(self) -> int:
        """log.roll.ms, else hours."""
        return self.log_roll_ms if self.log_roll_ms is not None else self.log_roll_hours * 3_600_000

    def connections_limit(self, open_files_limit: int) -> int:
        return self.max_connections or max(16, open_files_limit * 3 // 8)

    def connections_per_ip_limit(self, connections_max: int) -> int:
        """Of a port that takes so many."""
        return self.max_connections_per_ip or max(16, connections_max // 2)

    def open_files_budget(self, open_files_limit: int) -> int:
        return self.log_open_files_max or max(8, open_files_limit // 2)

    # --- for DescribeConfigs ---

    def value_of(self, name: str) -> Value:
        value: Value = getattr(self, attribute_of(name))
        return value

    def source_of(self, name: str) -> ConfigSource:
        return ConfigSource.NODE if name in self.given else ConfigSource.DEFAULT

    def describe(self) -> list[ConfigEntry]:
        """Every setting of this node; all are read-only while it runs."""
        return [self._entry(setting) for setting in NODE_SETTINGS.values()]

    def _entry(self, setting: Setting) -> ConfigEntry:
        value = text_of(self.value_of(setting.name))
        source = self.source_of(setting.name)
        own = Synonym(setting.name, value, source)
        default = Synonym(setting.name, text_of(setting.default), ConfigSource.DEFAULT)
        synonyms = (own,) if source is ConfigSource.DEFAULT else (own, default)
        return ConfigEntry(setting.name, value, source, setting.kind, setting.doc, True, synonyms)


NODE_SETTINGS: dict[str, Setting] = settings_of(NodeSettings)

_KAFKA_NAMES = {
    "node.id": "broker.id",
    "listeners": "listen",
    "port": "listen",
    "advertised.listeners": "advertise",
    "log.dirs": "data.dir",
    "log.dir": "data.dir",
    "log.flush.interval.messages": "flush",
    "log.flush.interval.ms": "flush.interval.ms",
    "retention.ms": "log.retention.ms",
    "retention.bytes": "log.retention.bytes",
    "segment.bytes": "log.segment.bytes",
    "cleanup.policy": "log.cleanup.policy",
    "max.message.bytes": "message.max.bytes",
}
"""Names people bring from Kafka, or from a topic, that are written otherwise here."""
