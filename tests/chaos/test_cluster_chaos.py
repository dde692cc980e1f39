"""A short run of `make chaos`: what was acknowledged is there, once and in order, whatever happened to the brokers."""

from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient

from anabranch.testing import ClusterProcesses
from chaos.cluster_load import QUIET
from chaos.cluster_run import TOPIC, ChaosRun, is_sound


def test_single_node_keeps_what_it_acknowledged(tmp_path: Path) -> None:
    result = ChaosRun(tmp_path, brokers=1, seed=1, seconds=12, partitions=3, per_second=100).run()
    assert is_sound(result), result
    assert result["fault_count"] >= 2
    assert result["acknowledged"] <= result["read_at_the_end"]


def test_cluster_keeps_what_it_acknowledged(tmp_path: Path) -> None:
    result = ChaosRun(tmp_path, brokers=3, seed=3, seconds=30, partitions=4, per_second=100).run()
    assert is_sound(result), result
    assert result["fault_count"] >= 4
    assert result["acknowledged"] <= result["read_at_the_end"]


class _Robbed(ChaosRun):
    """Somebody takes acknowledged records away before they are read at the end."""

    def _calm_down(self, cluster: ClusterProcesses) -> list[str]:
        late = super()._calm_down(cluster)
        admin = AdminClient({**QUIET, "bootstrap.servers": cluster.bootstrap})
        place = confluent_kafka.TopicPartition(TOPIC, 0, 5)
        for future in admin.delete_records([place]).values():
            future.result()
        return late


def test_records_that_go_missing_are_noticed(tmp_path: Path) -> None:
    result: dict[str, Any] = _Robbed(
        tmp_path, brokers=1, seed=1, seconds=1, partitions=3, per_second=50
    ).run()
    assert result["violations"]["lost"] == 5
    assert not is_sound(result)
