"""One member of a group, as a process: `group_member.py BOOTSTRAP TOPIC GROUP`.

Prints a JSON line for every assignment (generation, member, partitions) and for every batch of processed values,
before it commits them. Leaves the group on SIGTERM; kill -9 makes it vanish without a word.
"""

import asyncio
import contextlib
import json
import signal
import sys
from typing import Any

import aiokafka
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.errors import CommitFailedError


def _say(**what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


class Witness(aiokafka.ConsumerRebalanceListener):
    def __init__(self, consumer: aiokafka.AIOKafkaConsumer) -> None:
        self._consumer = consumer

    def on_partitions_revoked(self, revoked: Any) -> None:
        pass

    def on_partitions_assigned(self, assigned: Any) -> None:
        coordinator = self._consumer._coordinator
        _say(
            generation=coordinator.generation,
            member=coordinator.member_id,
            partitions=sorted(partition.partition for partition in assigned),
        )


async def _run(bootstrap: str, topic: str, group: str) -> None:
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=1000,
        heartbeat_interval_ms=100,
        rebalance_timeout_ms=3000,
        max_poll_records=20,
        partition_assignment_strategy=[RoundRobinPartitionAssignor],
    )
    consumer.subscribe([topic], listener=Witness(consumer))
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await consumer.start()
    while not stop.is_set():
        batches = await consumer.getmany(timeout_ms=200)
        values = [record.value.decode() for records in batches.values() for record in records]
        if values:
            _say(
                values=values
            )  # Said before the commit: who dies in between has processed them all the same.
            # If the group has moved on, another member processes these again.
            with contextlib.suppress(CommitFailedError):
                await consumer.commit()
    await consumer.stop()


if __name__ == "__main__":
    asyncio.run(_run(*sys.argv[1:]))
