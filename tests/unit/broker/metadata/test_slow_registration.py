"""A broker is registered in the end, however long the quorum takes to agree on it."""

import asyncio
from collections.abc import Iterator

import pytest

from anabranch.broker.metadata.orchestrator import ASK_MS_MAX, Orchestrator
from anabranch.broker.peers.messages import RegisterBroker, Registered
from support.broker_cluster import close_all, cluster_of


@pytest.fixture(autouse=True)
def clusters_end() -> Iterator[None]:
    yield
    close_all()


def test_a_registration_that_takes_longer_than_a_heartbeat_may_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = cluster_of(3)
    follower = cluster.follower_id
    cluster.kill(follower)
    cluster.run(4000)
    registered = Orchestrator.registered
    asked = 0

    async def slowly(self: Orchestrator, question: RegisterBroker) -> Registered:
        nonlocal asked
        asked += 1
        answer = await registered(self, question)
        await asyncio.sleep(2 * ASK_MS_MAX / 1000)
        return answer

    monkeypatch.setattr(Orchestrator, "registered", slowly)
    cluster.start(follower)
    cluster.settle()
    assert asked <= 2
