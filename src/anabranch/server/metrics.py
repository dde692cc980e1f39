"""What `/metrics` says, gathered when it is asked for: counting costs the requests nothing but an addition."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from anabranch import __version__

if TYPE_CHECKING:
    from anabranch.broker.branch.branches import BranchTopics
    from anabranch.broker.broker import Broker
    from anabranch.broker.object.objects import Objects
    from anabranch.broker.topics.partition import Partition
    from anabranch.broker.topics.topics import Topics
    from anabranch.server.listener import Listener
    from anabranch.values import TopicPartition


class NodeCollector(Collector):
    def __init__(self, broker: "Broker", listener: "Listener") -> None:
        self._broker = broker
        self._listener = listener

    def collect(self) -> Iterator[Metric]:
        yield gauge("anabranch_info", "The version that runs.", 1, version=__version__)
        yield from self._connections()
        yield from self._traffic()
        yield from self._storage()
        if self._broker.objects is not None:
            yield from self._objects(self._broker.objects)
        if self._broker.branches is not None:
            yield from self._branches(self._broker.branches)
        yield from self._groups()

    def _connections(self) -> Iterator[Metric]:
        listener = self._listener
        yield gauge("anabranch_connections", "Open client connections.", len(listener.connections))
        yield counter("anabranch_connections_accepted", "Connections accepted.", listener.connections_total)
        yield counter(
            "anabranch_connections_refused",
            "Connections beyond max.connections or max.connections.per.ip.",
            listener.connections_refused_total,
        )
        yield counter(
            "anabranch_connections_closed_for_memory",
            "Connections closed because the memory for requests was short.",
            listener.eviction.closed_total,
        )
        yield gauge(
            "anabranch_request_memory_bytes",
            "Memory taken by requests of over 64 KiB.",
            listener.memory.bytes_taken,
        )
        waits = self._broker.core.fetch_waits
        yield gauge(
            "anabranch_fetch_waiting_partitions",
            "Partitions that all Fetch requests wait for, the first 32 of each not counted.",
            waits.partitions,
        )
        yield counter(
            "anabranch_fetches_turned_away",
            "Fetch requests answered early because too many partitions were waited for.",
            waits.turned_away_total,
        )

    def _traffic(self) -> Iterator[Metric]:
        core = self._broker.core
        yield counter("anabranch_requests", "Requests read.", self._listener.requests_total)
        yield counter("anabranch_batches_in", "Batches handed to the writer.", core.batches_total)
        yield counter("anabranch_bytes_in", "Bytes of batches acknowledged.", core.bytes_in_total)
        yield counter("anabranch_bytes_out", "Bytes of batches fetched.", self._broker.bytes_out_total)
        if self._broker.routing is not None:
            yield counter(
                "anabranch_batches_forwarded",
                "Batches handed to the brokers that lead their partitions.",
                self._broker.routing.forwarded_total,
            )
        yield gauge(
            "anabranch_append_queue_bytes", "Bytes of batches not answered yet.", core.queue.bytes_held
        )

    def _storage(self) -> Iterator[Metric]:
        broker = self._broker
        partitions = list(broker.topics.partitions())
        yield gauge("anabranch_topics", "Topics.", len(broker.topics))
        yield gauge("anabranch_partitions", "Partitions.", len(partitions))
        yield gauge(
            "anabranch_log_bytes", "Bytes of all logs.", sum(each.log.size_bytes for each in partitions)
        )
        yield gauge(
            "anabranch_fenced_partitions",
            "Partitions that take no writes because a sync failed.",
            sum(each.log.fenced for each in broker.partitions()),
        )
        yield counter("anabranch_syncs", "Syncs of log files.", broker.core.syncer.syncs_total)
        yield counter("anabranch_sync_failures", "Syncs that failed.", broker.core.syncer.failures_total)
        yield counter("anabranch_corrupt_reads", "Reads that met a bad checksum.", broker.corrupt_reads_total)
        yield gauge(
            "anabranch_losses_at_start",
            "Losses of records that were safe, found by the start.",
            broker.opener.losses_total,
        )
        scrubbing, cleaning = broker.housekeeping.scrubbing, broker.housekeeping.cleaning
        yield counter("anabranch_scrubbed_bytes", "Bytes re-read by the scrubber.", scrubbing.bytes_total)
        yield gauge("anabranch_damaged_regions", "Damage the scrubber found.", scrubbing.damaged_total)
        yield counter("anabranch_cleaner_runs", "Compactions of a log.", cleaning.runs_total)
        yield counter(
            "anabranch_cleaner_freed_bytes", "Bytes compaction freed.", cleaning.bytes_dropped_total
        )
        offers = cleaning.offers
        yield counter("anabranch_offers_taken", "Compactions by jobs that were taken in.", offers.taken_total)
        yield counter("anabranch_offers_refused", "Those that were refused.", offers.refused_total)
        yield gauge(
            "anabranch_disk_free_bytes", "Free bytes of the data folder's disk.", broker.disk_room()[1]
        )

    def _objects(self, objects: "Objects") -> Iterator[Metric]:
        writing, cache, upkeep = objects.writing, objects.cache, objects.upkeep
        stored = list(self._broker.topics.object_partitions())
        yield gauge("anabranch_object_partitions", "Partitions in the object store.", len(stored))
        yield gauge(
            "anabranch_object_bytes", "Bytes of their records.", sum(each.log.size_bytes for each in stored)
        )
        yield gauge(
            "anabranch_object_held_bytes", "Bytes gathered and not agreed on yet.", writing.held_bytes
        )
        yield counter("anabranch_object_puts", "Objects put into the store.", writing.puts_total)
        yield counter("anabranch_object_put_failures", "Puts that failed.", writing.put_failures_total)
        yield counter("anabranch_object_gets", "Blocks read from the store.", cache.loads.gets_total)
        yield counter("anabranch_object_get_bytes", "Bytes of those blocks.", cache.loads.get_bytes_total)
        yield gauge("anabranch_object_cache_bytes", "Memory of the block cache.", cache.bytes_held)
        yield counter("anabranch_object_merges", "Merges of small objects.", upkeep.merges.merges_total)
        yield counter("anabranch_object_deletions", "Objects deleted.", upkeep.objects_deleted_total)

    def _branches(self, branches: "BranchTopics") -> Iterator[Metric]:
        from anabranch.broker.branch.report import silences

        partitions = branches.partitions()
        counts = branches.counts.counts(partitions, branches.gaps)
        yield gauge("anabranch_branch_partitions", "Partitions in mode branch.", len(partitions))
        yield gauge(
            "anabranch_branches_open",
            "Branches that nothing has joined yet, beyond one for each partition: 0 if nothing is split.",
            counts.open,
        )
        yield counter("anabranch_branches_merged", "Branches opened to join others.", counts.joined)
        yield counter(
            "anabranch_branch_records_reappended",
            "Records written a second time to join branches.",
            counts.reappended,
        )
        yield gauge("anabranch_branch_lanes", "Lanes held here.", counts.lanes)
        yield gauge("anabranch_branch_lane_bytes", "Bytes of those.", counts.lane_bytes)
        yield gauge(
            "anabranch_branch_silent_peers",
            "Brokers that this one has not heard within branch.silence.ms.",
            len(silences(self._broker)),
        )

    def _groups(self) -> Iterator[Metric]:
        lag = GaugeMetricFamily(
            "anabranch_group_lag_records",
            "Records between a group's committed offset and the high watermark.",
            labels=["group", "topic", "partition"],
        )
        for group_id, topic_partition, committed in self._broker.groups.committed():
            partition = _readable(self._broker.topics, topic_partition)
            if partition is not None:
                behind = partition.records_from(committed)
                lag.add_metric([group_id, topic_partition.topic, str(topic_partition.partition)], behind)
        yield lag


def _readable(topics: "Topics", place: "TopicPartition") -> "Partition | None":
    """Also of one branch, where groups may have committed too."""
    state = topics.find_readable(place.topic)
    return state.partitions[place.partition] if state and place.partition < len(state.partitions) else None


def gauge(name: str, text: str, value: float, **labels: str) -> Metric:
    family = GaugeMetricFamily(name, text, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family


def counter(name: str, text: str, value: float) -> Metric:
    family = CounterMetricFamily(name, text)
    family.add_metric([], value)
    return family


def counters(name: str, text: str, label: str, values: Mapping[str, int]) -> Metric:
    """One counter for each value of the label, of which there must be few."""
    family = CounterMetricFamily(name, text, labels=[label])
    for value, count in sorted(values.items()):
        family.add_metric([value], count)
    return family


def render(broker: "Broker", listener: "Listener", *more: Collector) -> bytes:
    """`more` have figures of other rooms."""
    registry = CollectorRegistry()
    for collector in (NodeCollector(broker, listener), *more):
        registry.register(collector)
    return generate_latest(registry)
