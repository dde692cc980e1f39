"""A node without peers does not pay for the cluster: it does not even load its code."""

import json
import subprocess
import sys
from pathlib import Path

from support.secret_files import write_secret

OF_CLUSTERS = (
    "anabranch.broker.metadata.orchestrator",
    "anabranch.broker.peers.",
    "anabranch.broker.requests.forwarding",
    "anabranch.broker.ring.",
    "anabranch.cluster.orchestrator",
    "anabranch.local_cluster",
    "anabranch.modes.ring.",
    "anabranch.server.peers.",
)
OF_OBJECTS = (
    "anabranch.broker.metadata.proposals",
    "anabranch.broker.object.",
    "anabranch.cluster.objects.",
    "anabranch.cluster.rendezvous",
    "anabranch.config.store_url",
    "anabranch.modes.object.",
    "anabranch.objects",
    "obstore",
)
SCRIPT = """
import asyncio, json, sys, tempfile
from anabranch.config import NodeSettings
from anabranch.node import Node

async def life(folder):
    settings = {"listen": "127.0.0.1:0", "data.dir": folder, **json.loads(sys.argv[1])}
    node = Node(NodeSettings.load(settings))
    await node.start()
    await node.stop()

with tempfile.TemporaryDirectory() as folder:
    asyncio.run(life(folder))
print(json.dumps(sorted(sys.modules)))
"""


def loaded_by(settings: dict[str, str], such: tuple[str, ...] = OF_CLUSTERS) -> list[str]:
    words = [sys.executable, "-c", SCRIPT, json.dumps(settings)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    return [name for name in json.loads(done.stdout) if name.startswith(such)]


def test_a_node_without_peers_loads_nothing_of_clusters() -> None:
    assert loaded_by({}) == []


def test_a_node_without_an_object_store_loads_nothing_of_it() -> None:
    assert loaded_by({}, OF_OBJECTS) == []


def test_a_broker_with_peers_does(tmp_path: Path) -> None:
    secret = write_secret(tmp_path / "secret", "a secret of the test, long enough to be one")
    loaded = loaded_by({"peer.listen": "127.0.0.1:0", "cluster.secret.file": str(secret)})
    assert "anabranch.broker.peers.peering" in loaded
