"""Every option of `format("anabranch")`, each checked; pure.

The names Spark's Kafka users know mean the same here. A name that does not exist is refused together with the one
that was probably meant, and so is what Spark's connector has and we do not. Spark hands options over in lower case;
messages say them as they are documented.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from typing import TypeVar

from anabranch.errors import OptionError
from anabranch.pipeline.client.client import PATIENCE_SECONDS, addresses_of
from anabranch.pipeline.source.offsets import (
    FROM_LATEST,
    Bound,
    Point,
    parse_bound,
    parse_json,
    parse_time,
    parse_times,
)
from anabranch.values import TopicPartition

T = TypeVar("T")


class Direct(Enum):
    """Whether sealed segment files, and objects in a store, are read without the broker."""

    AUTO = "auto"
    NEVER = "never"
    REQUIRE = "require"


@dataclass(frozen=True)
class Subscription:
    """Which partitions: all of the named topics, all of those whose name fits, or exactly these."""

    names: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[TopicPartition, ...] = ()

    @property
    def wanted_names(self) -> tuple[str, ...] | None:
        """The topics to ask for; None: look at all of them."""
        if self.pattern is not None:
            return None
        return self.names or tuple(sorted({place.topic for place in self.assigned}))

    def fits(self, name: str, *, is_internal: bool) -> bool:
        """A pattern is looked for anywhere in the name, as Spark's connector does: anchor it to mean the whole."""
        if self.pattern is None:
            return True
        return not is_internal and re.search(self.pattern, name) is not None

    def wants(self, place: TopicPartition) -> bool:
        return not self.assigned or place in self.assigned

    def __str__(self) -> str:
        return self.pattern or ",".join(self.names) or ",".join(str(place) for place in self.assigned)


@dataclass(frozen=True)
class ReaderOptions:
    bootstrap: str
    subscription: Subscription
    start: Bound | None
    """None: the earliest for a batch, the latest for a stream."""
    end: Bound
    late_start: Point | None
    """What a start by time means where no record is that late; None: an error."""
    offsets_per_trigger_max: int | None
    partitions_min: int | None
    records_per_partition_max: int | None
    fail_on_data_loss: bool
    include_headers: bool
    verify: bool
    group: str
    direct: Direct
    credentials_file: str | None
    """Of the object store, where tasks run; None: those of the environment there."""
    broker_seconds_max: float


@dataclass(frozen=True)
class WriterOptions:
    bootstrap: str
    topic: str | None
    producer: Mapping[str, str]
    """Settings for librdkafka."""


# --- the names ----------------------------------------------------------------------------------------------------

START_NAMES = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
END_NAMES = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
STREAM_NAMES = ("maxOffsetsPerTrigger", "group")
READER_NAMES = (
    "bootstrap",
    "topic",
    "topicPattern",
    "assign",
    *START_NAMES,
    "startingOffsetsByTimestampStrategy",
    *END_NAMES,
    "maxOffsetsPerTrigger",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "includeHeaders",
    "verify",
    "group",
    "direct",
    "credentialsFile",
    "brokerTimeoutSeconds",
)
PRODUCER_SETTINGS = {
    "kafka.compression.type": "compression.type",
    "kafka.linger.ms": "linger.ms",
    "kafka.batch.size": "batch.size",
    "kafka.delivery.timeout.ms": "delivery.timeout.ms",
    "kafka.max.request.size": "message.max.bytes",
    "kafka.client.id": "client.id",
}
WRITER_NAMES = ("bootstrap", "topic", "includeHeaders", *PRODUCER_SETTINGS)
SPARKS_OWN = ("checkpointlocation", "queryname", "outputmode", "__streaming_output_mode")
"""What Spark itself puts among the options of a writer."""

ALIASES = {
    "kafka.bootstrap.servers": "bootstrap",
    "subscribe": "topic",
    "subscribePattern": "topicPattern",
    "kafka.group.id": "group",
}

ABSENT = {
    "minOffsetsPerTrigger": "triggers are not held back; use a longer trigger interval",
    "maxTriggerDelay": "triggers are not held back; use a longer trigger interval",
    "groupIdPrefix": "name the group with the option group",
    "kafkaConsumer.pollTimeoutMs": "brokerTimeoutSeconds says how long a broker may be away",
    "fetchOffset.numRetries": "brokerTimeoutSeconds says how long a broker may be away",
    "fetchOffset.retryIntervalMs": "brokerTimeoutSeconds says how long a broker may be away",
    "kafka.isolation.level": "records of aborted transactions are always left out",
    "kafka.acks": "the writer always waits for all copies",
    "kafka.auto.offset.reset": "say where to begin with startingOffsets",
    "kafka.enable.auto.commit": "progress is in Spark's checkpoint, and shown as the option group says",
    "path": "topics are named with the option topic",
}
"""What Spark's connector or load() takes and we do not, and what to do instead."""

_SECURITY = ("kafka.sasl.", "kafka.ssl.", "kafka.security.")


def _canonical(names: tuple[str, ...]) -> dict[str, str]:
    known = {name.lower(): name for name in names}
    known.update({alias.lower(): name for alias, name in ALIASES.items() if name in names})
    return known


def _named(options: Mapping[str, str], names: tuple[str, ...]) -> dict[str, tuple[str, str]]:
    """Canonical name to (the name it was given by, value)."""
    known = _canonical(names)
    spelled = {alias.lower(): alias for alias in ALIASES}
    found: dict[str, tuple[str, str]] = {}
    for given, value in options.items():
        lowered = given.lower()
        if lowered in known:
            name = known[lowered]
            if name in found and found[name][1] != value:
                raise OptionError(f"{found[name][0]} and {spelled.get(lowered, name)} say different things.")
            found[name] = (spelled.get(lowered, name), value)
        elif not _is_plaintext(lowered, value):
            raise _refusal(given, names)
    return found


def _is_plaintext(name: str, value: str) -> bool:
    return name == "kafka.security.protocol" and value.upper() == "PLAINTEXT"


def _refusal(given: str, names: tuple[str, ...]) -> OptionError:
    lowered = given.lower()
    if lowered.startswith(_SECURITY):
        return OptionError(
            f"{given}: brokers have no encryption and no log-in yet; only kafka.security.protocol=PLAINTEXT will do."
        )
    for absent, instead in ABSENT.items():
        if lowered == absent.lower():
            return OptionError(f"{absent} is not an option here: {instead}.")
    spellings = {name.lower(): name for name in (*names, *ALIASES)}
    near = get_close_matches(lowered, spellings, n=1, cutoff=0.6)
    meant = f" Did you mean {spellings[near[0]]}?" if near else f" There are: {', '.join(names)}."
    return OptionError(f"There is no option {given}.{meant}")


# --- reading ------------------------------------------------------------------------------------------------------


def reader_options(options: Mapping[str, str]) -> ReaderOptions:
    """All of a reader's options; OptionError names the first that is wrong."""
    given = _named(options, READER_NAMES)
    subscription = _subscription(given)
    group = _value(given, "group", _text, f"anabranch-spark.{subscription}")
    return ReaderOptions(
        bootstrap=_bootstrap(given),
        subscription=subscription,
        start=_bound(given, START_NAMES),
        end=_end(given),
        late_start=_late_start(given),
        offsets_per_trigger_max=_value(given, "maxOffsetsPerTrigger", _positive, None),
        partitions_min=_value(given, "minPartitions", _positive, None),
        records_per_partition_max=_value(given, "maxRecordsPerPartition", _positive, None),
        fail_on_data_loss=_value(given, "failOnDataLoss", _yes_or_no, True),
        include_headers=_value(given, "includeHeaders", _yes_or_no, False),
        verify=_value(given, "verify", _yes_or_no, True),
        group=group,
        direct=_value(given, "direct", _direct, Direct.AUTO),
        credentials_file=_value(given, "credentialsFile", _text, None),
        broker_seconds_max=_value(given, "brokerTimeoutSeconds", _seconds, PATIENCE_SECONDS),
    )


def canonical_names(options: Mapping[str, str]) -> dict[str, str]:
    """Of a reader's options: the name as it was given to the name that is documented; those that do not exist are left
    out."""
    known = _canonical(READER_NAMES)
    return {given: known[given.lower()] for given in options if given.lower() in known}


def check_for_stream(options: Mapping[str, str]) -> None:
    """A stream has no end."""
    for name, (said, _) in _named(options, READER_NAMES).items():
        if name in END_NAMES:
            raise OptionError(
                f"{said} is for batches: a stream has no end (trigger availableNow stops at one)."
            )


def stream_only(options: Mapping[str, str]) -> list[str]:
    """Options that a batch does not use."""
    return [said for name, (said, _) in _named(options, READER_NAMES).items() if name in STREAM_NAMES]


def writer_options(options: Mapping[str, str]) -> WriterOptions:
    kept = {name: value for name, value in options.items() if name.lower() not in SPARKS_OWN}
    given = _named(kept, WRITER_NAMES)
    topic = _value(given, "topic", _text, None)
    if topic is not None and "," in topic:
        raise OptionError(
            f"topic: one topic can be written to, not {topic!r}; a column topic names one per row."
        )
    producer = {PRODUCER_SETTINGS[name]: given[name][1] for name in PRODUCER_SETTINGS if name in given}
    return WriterOptions(_bootstrap(given), topic, producer)


# --- single values --------------------------------------------------------------------------------------------------

Given = Mapping[str, tuple[str, str]]


def _value(given: Given, name: str, read: Callable[[str, str], T], default: T) -> T:
    if name not in given:
        return default
    said, text = given[name]
    return read(said, text)


def _bootstrap(given: Given) -> str:
    if "bootstrap" not in given:
        raise OptionError("The option bootstrap is missing: where a broker listens, such as localhost:9092.")
    text = given["bootstrap"][1]
    addresses_of(text)
    return text


def _subscription(given: Given) -> Subscription:
    ways = [given[name][0] for name in ("topic", "topicPattern", "assign") if name in given]
    if len(ways) != 1:
        said = f"{' and '.join(ways)} exclude each other" if ways else "The option topic is missing"
        raise OptionError(
            f"{said}: give one of topic (names with commas), topicPattern (a regular expression) and assign (JSON)."
        )
    if "topic" in given:
        return Subscription(names=_names(*given["topic"]))
    if "topicPattern" in given:
        return Subscription(pattern=_pattern(*given["topicPattern"]))
    return Subscription(assigned=_assigned(*given["assign"]))


def _names(said: str, text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not names:
        raise OptionError(f"{said}: no topic is named.")
    return names


def _pattern(said: str, text: str) -> str:
    pattern = _text(said, text)
    try:
        re.compile(pattern)
    except re.error as error:
        raise OptionError(f"{said}: {text!r} is not a regular expression: {error}.") from error
    return pattern


def _assigned(said: str, text: str) -> tuple[TopicPartition, ...]:
    places = []
    for topic, numbers in parse_json(said, text).items():
        if not isinstance(numbers, list) or not all(type(each) is int and each >= 0 for each in numbers):
            raise OptionError(f'{said}: {text!r} must list partitions by topic: {{"orders": [0, 1]}}.')
        places += [TopicPartition(topic, number) for number in numbers]
    if not places:
        raise OptionError(f"{said}: no partition is named.")
    return tuple(sorted(set(places)))


def _bound(given: Given, names: tuple[str, str, str]) -> Bound | None:
    """As with Spark, one time for all wins over times, and times over offsets."""
    for name, parse in zip(names, (parse_time, parse_times, parse_bound), strict=True):
        if name in given:
            return parse(name, given[name][1])
    return None


def _end(given: Given) -> Bound:
    bound = _bound(given, END_NAMES) or FROM_LATEST
    if bound.point is Point.EARLIEST:
        raise OptionError("endingOffsets: earliest is no end; give latest, offsets or a moment.")
    return bound


def _late_start(given: Given) -> Point | None:
    said, text = given.get("startingOffsetsByTimestampStrategy", ("", "error"))
    if text.lower() not in ("error", "latest"):
        raise OptionError(f"{said}: {text!r} is neither error nor latest.")
    return Point.LATEST if text.lower() == "latest" else None


def _text(said: str, text: str) -> str:
    if not text.strip():
        raise OptionError(f"{said} is empty.")
    return text.strip()


def _positive(said: str, text: str) -> int:
    if not text.strip().isdecimal() or int(text) == 0:
        raise OptionError(f"{said}: {text!r} is not a whole number above 0.")
    return int(text)


def _seconds(said: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 86_400:
        raise OptionError(f"{said}: {text!r} is not a number of seconds above 0 and below a day.")
    return seconds


def _yes_or_no(said: str, text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise OptionError(f"{said}: {text!r} is neither true nor false.")
    return text.strip().lower() == "true"


def _direct(said: str, text: str) -> Direct:
    try:
        return Direct(text.strip().lower())
    except ValueError:
        raise OptionError(f"{said}: {text!r} is none of auto, never and require.") from None
