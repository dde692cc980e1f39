"""Clients of topics in the object store: they write to any broker and read from any, and a witness holds all of them to
what one of them was told.

A topic is cleaned in one of three ways, and each leaves something else for a reader to hold the cluster to:

| cleaned | a reader from the start sees |
| --- | --- |
| KEPT | every record, from offset 0 on, without a gap |
| CUT | every record from some offset on, without a gap |
| COMPACTED | records in order; of each key the last one for certain |
"""

from collections.abc import Callable, Sequence
from enum import Enum
from random import Random

from anabranch.testing.in_process_client import Body
from anabranch.testing.simulation.cluster_clients import ClusterWitness
from anabranch.testing.simulation.cluster_simulator import ClusterSimulator
from anabranch.testing.simulation.producers import PlainProducer
from anabranch.testing.simulation.reading_on import Reading, ReadingClient
from anabranch.testing.simulation.simulator import Producer, SimulationError, produce_request
from anabranch.testing.simulation.witness import Place, Sent, compare
from anabranch.wire.error_codes import ErrorCode

KEYS = 3
"""Of each producer."""
ELSEWHERE_CHANCE = 0.1


class Cleaned(Enum):
    KEPT = "kept"
    CUT = "cut"
    COMPACTED = "compacted"


ObjectTopics = dict[str, Cleaned]


def key_of(sent: Sent) -> tuple[str, int]:
    return sent.producer, sent.number % KEYS


def _key_bytes(value: bytes) -> bytes:
    return repr(key_of(Sent.decode(value))).encode()


class ObjectWitness(ClusterWitness):
    def __init__(self, topics: ObjectTopics) -> None:
        super().__init__()
        self._topics = topics

    def may_be_cut(self, place: Place) -> bool:
        return self._topics[place[0]] is Cleaned.CUT

    def saw_some(self, place: Place, reading: Reading) -> None:
        """Of a topic in the store, from any broker and from any offset on."""
        found = {offset: Sent.decode(value or b"") for offset, value in reading.found}
        if len(found) != len(reading.found) or list(found) != sorted(found):
            raise SimulationError(
                f"the offsets of {place} go back: {[offset for offset, _ in reading.found]}"
            )
        self._check_run(place, reading, found)
        for promise, known in (("was seen", self._seen), ("was acknowledged", self._promised)):
            there = {offset: sent for offset, sent in known.get(place, {}).items() if offset in found}
            compare(place, promise, there, found)
        self._seen.setdefault(place, {}).update(found)

    def _check_run(self, place: Place, reading: Reading, found: dict[int, Sent]) -> None:
        is_compacted = self._topics[place[0]] is Cleaned.COMPACTED
        last: dict[str, int] = {}
        for offset, record in found.items():
            before = last.get(record.producer)
            is_whole = not is_compacted and record.producer.startswith("idempotent")
            if before is not None and (record.number != before + 1 if is_whole else record.number <= before):
                raise SimulationError(
                    f"{record} at offset {offset} of {place} follows number {before} of that producer"
                )
            last[record.producer] = record.number
        if found and not is_compacted and list(found) != list(range(min(found), min(found) + len(found))):
            raise SimulationError(f"the offsets of {place} have gaps: {list(found)}")
        if found and not is_compacted and min(found) != reading.asked:
            raise SimulationError(f"{place} was read from {reading.asked} on and begins at {min(found)}")

    def saw_whole(self, place: Place, reading: Reading) -> None:
        """From the start, when all is well."""
        self.saw_some(place, reading)
        found = {offset: Sent.decode(value or b"") for offset, value in reading.found}
        cleaned = self._topics[place[0]]
        if cleaned is Cleaned.KEPT and reading.start != 0:
            raise SimulationError(f"{place} begins at {reading.start}, and nobody has cut it")
        latest = {key_of(record): offset for offset, record in found.items()}
        for promise, known in (("was seen", self._seen), ("was acknowledged", self._promised)):
            expected = known.get(place, {})
            if cleaned is Cleaned.COMPACTED:
                expected = {
                    offset: record
                    for offset, record in expected.items()
                    if latest.get(key_of(record), -1) <= offset
                }
            compare(
                place, promise, {each: one for each, one in expected.items() if each >= reading.start}, found
            )


class ObjectClient(ReadingClient):
    """Any broker serves it as well as any other; it stays with one for a while, unless `broker_id` is given."""

    fetch_wait_ms = 200

    def __init__(
        self, sim: ClusterSimulator, rng: Random, topics: ObjectTopics, broker_id: int | None = None
    ) -> None:
        super().__init__(sim, rng)
        self._topics = topics
        self._fixed = broker_id
        self._home: int | None = broker_id

    def leader_of(self, place: Place) -> int | None:
        if place[0] not in self._topics:
            return super().leader_of(place)
        if self._fixed is None and (self._home is None or self._rng.random() < ELSEWHERE_CHANCE):
            self._home = self.anybody()
        return self._home

    def _forget(self, place: Place) -> None:
        super()._forget(place)
        self._home = self._fixed

    def _produce_request(
        self, place: Place, values: Sequence[bytes], acks: int, producer: Producer | None
    ) -> Body:
        if self._topics.get(place[0]) is not Cleaned.COMPACTED:
            return super()._produce_request(place, values, acks, producer)
        return produce_request(*place, values, self._sim.clock.wall_ms(), acks, producer, _key_bytes)


class RoamingProducer:
    """Writes to any broker, without retries. What it sends to one broker stays in order; what it sends to several at
    the same time need not, so that it has another name at each."""

    def __init__(self, sessions: Callable[[int], PlainProducer], brokers: Callable[[], int]) -> None:
        self._session_with = sessions
        self._anybody = brokers
        self._sessions: dict[int, PlainProducer] = {}

    def act(self, rng: Random) -> None:
        number = self._anybody()
        if number not in self._sessions:
            self._sessions[number] = self._session_with(number)
        self._sessions[number].act(rng)


class Follower:
    """A consumer that goes on where it was, at whichever broker."""

    def __init__(self, name: str, place: Place, client: ObjectClient, witness: ObjectWitness) -> None:
        self.name = name
        self.place = place
        self._client = client
        self._witness = witness
        self._position = 0
        self._is_asking = False

    def act(self) -> None:
        if not self._is_asking:
            self._is_asking = True
            self._client.read_on(self.place, self._client.anybody(), self._position, self._heard, once=True)

    def _heard(self, reading: Reading) -> None:
        self._is_asking = False
        # One that was cut while the answer was made is refused, too; the next answer says where it begins.
        if reading.code is ErrorCode.OFFSET_OUT_OF_RANGE and not self._witness.may_be_cut(self.place):
            raise SimulationError(
                f"{self.name} has read {self.place} up to {self._position}, and is refused: {reading}"
            )
        if reading.found:
            self._client.note(f"{self.name} {self.place}: {reading.asked} to {reading.next_offset}")
        self._witness.saw_some(self.place, reading)
        self._position = reading.next_offset
