"""Three brokers and a topic that goes over to branches while it is written to: offsets have gaps from then on."""

from random import Random

from anabranch.record.builder import BatchBuilder
from anabranch.record.records import records_of
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.error_codes import ErrorCode as E
from support.form_cluster import EARLIEST, LATEST, FormCluster, batch_of

CHANGE_MS_MAX = 120_000


class JoinCluster(FormCluster):
    def __init__(self, mode: str, partitions: int = 1, seed: int = 1, **configs: str) -> None:
        self._sent: dict[int, bytes] = {}
        super().__init__(mode, partitions, seed, **configs)

    def _batch(self, number: int) -> bytes:
        """Whoever tries again sends the same bytes."""
        if number not in self._sent:
            self._sent[number] = batch_of(number, self.clock.wall_ms())
        return self._sent[number]

    def produce(self, index: int = 0, *, repeat: bool = False) -> None:
        written = self.written[index]
        number = len(written) - repeat
        batch = self._batch(number)

        def work(leader: int) -> int:
            rows = [{"index": index, "records": batch}]
            body = {
                "transactional_id": None,
                "acks": -1,
                "timeout_ms": 5000,
                "topic_data": [{"name": "t", "partition_data": rows}],
            }
            answer = self.ask(leader, ApiKey.PRODUCE, 9, body)
            code = int(answer["responses"][0]["partition_responses"][0]["error_code"])
            return E.NOT_LEADER_OR_FOLLOWER if code == E.OUT_OF_ORDER_SEQUENCE_NUMBER else code

        self._retried(index, work)
        if not repeat:
            written.append(b"%d" % number)

    def change_among_deaths(self, mode: str, form: str, rng: Random, kills_ms_max: int = 4000) -> None:
        """To that mode, while it is written to, brokers are killed three times, and come back."""
        assert self.alter(mode)["error_code"] == 0
        begun_ms = self.clock.monotonic_ms()
        kills = sorted(rng.randrange(kills_ms_max) for _ in range(3))
        down: dict[int, int] = {}
        while kills or down or self.leader_id is None or not self.is_done(form):
            now_ms = self.clock.monotonic_ms()
            assert now_ms < begun_ms + CHANGE_MS_MAX, "it did not come about"
            if kills and not down and now_ms - begun_ms >= kills[0]:
                kills.pop(0)
                broker = rng.choice((1, 2, 3))
                self.kill(broker)
                down[broker] = now_ms + rng.randrange(5000)
            for broker in [each for each, until_ms in down.items() if now_ms >= until_ms]:
                del down[broker]
                self.start(broker)
            self.produce()
            self.run(rng.choice((5, 20, 100)))
        self.produce()
        self.produce(repeat=True)
        self.run(5000)

    def write_alone(self, leader: int, value: bytes) -> None:
        """To a leader that nobody follows any more: it is in its log, and nowhere else."""
        builder = BatchBuilder()
        builder.add(b"k", value, timestamp_ms=self.clock.wall_ms())
        rows = [{"index": 0, "records": bytes(builder.build())}]
        body = {
            "transactional_id": None,
            "acks": -1,
            "timeout_ms": 200,
            "topic_data": [{"name": "t", "partition_data": rows}],
        }
        partition = self.broker(leader).topics.partition("t", 0)
        end = partition.log.end_offset
        answer = self.ask(leader, ApiKey.PRODUCE, 9, body)
        assert answer["responses"][0]["partition_responses"][0]["error_code"] != 0
        assert partition.log.end_offset == end + 1

    def values(self, index: int = 0, start: int = 0) -> list[bytes]:
        found: list[bytes] = []
        at = start
        for _ in range(2000):
            if at >= self.offset(LATEST, index):
                return found
            row = self.fetch(at, index)
            assert row["error_code"] == 0, row["error_code"]
            data, position = row["records"] or b"", 0
            while position < len(data):
                size = int.from_bytes(data[position + 8 : position + 12], "big") + 12
                for record in records_of(data[position : position + size]):
                    if record.offset >= at:
                        found.append(bytes(record.value or b""))
                        at = record.offset + 1
                position += size
            if not data:
                self.run(50)
        raise AssertionError(f"the reader waits at {at} for ever, after {len(found)} records")

    def check(self, index: int = 0) -> None:
        start = self.deleted.get(index, 0)
        assert self.offset(EARLIEST, index) == start
        assert self.values(index, start) == self.written[index][start:]
