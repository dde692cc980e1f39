import java.util.Collection;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.CreateTopicsOptions;
import org.apache.kafka.clients.admin.GroupListing;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.InvalidConfigurationException;
import org.apache.kafka.common.errors.TopicExistsException;

/** The Admin client: topics, configs, partitions, offsets, records, groups, the cluster and its log folders. */
final class AdminChecks {
    private AdminChecks() {}

    static void addTo(List<Interop.Named> checks) {
        checks.add(new Interop.Named("admin_topics", AdminChecks::topics));
        checks.add(new Interop.Named("admin_configs", AdminChecks::configs));
        checks.add(new Interop.Named("admin_partitions", AdminChecks::partitions));
        checks.add(new Interop.Named("admin_offsets", AdminChecks::offsets));
        checks.add(new Interop.Named("admin_delete_records", AdminChecks::deleteRecords));
        checks.add(new Interop.Named("admin_groups", AdminChecks::groups));
        checks.add(new Interop.Named("admin_group_offsets", AdminChecks::groupOffsets));
        checks.add(new Interop.Named("admin_cluster", AdminChecks::cluster));
        checks.add(new Interop.Named("admin_log_folders", AdminChecks::logFolders));
    }

    private static <T> T get(KafkaFuture<T> future) throws Exception {
        return future.get(Interop.ANSWER_MS_MAX, TimeUnit.MILLISECONDS);
    }

    static Admin admin() {
        return Admin.create(Interop.settings(Map.of()));
    }

    static void createTopic(String topic, int partitions) throws Exception {
        try (Admin admin = admin()) {
            get(admin.createTopics(List.of(new NewTopic(topic, partitions, (short) 1))).all());
        }
    }

    private static <T extends Throwable> T refused(KafkaFuture<?> future, Class<T> reason) throws Exception {
        try {
            get(future);
        } catch (ExecutionException refusal) {
            Interop.expect(reason.isInstance(refusal.getCause()), "refused for another reason: " + refusal.getCause());
            return reason.cast(refusal.getCause());
        }
        throw new AssertionError("was not refused");
    }

    private static void topics(String topic) throws Exception {
        try (Admin admin = admin()) {
            NewTopic wanted = new NewTopic(topic, 3, (short) 1).configs(Map.of("cleanup.policy", "compact"));
            get(admin.createTopics(List.of(wanted), new CreateTopicsOptions().validateOnly(true)).all());
            Interop.expect(!get(admin.listTopics().names()).contains(topic), "validation created the topic");
            var created = admin.createTopics(List.of(wanted));
            Interop.expectEqual(3, get(created.numPartitions(topic)), "partitions in the answer");
            Interop.expectEqual("compact", get(created.config(topic)).get("cleanup.policy").value(), "config in the answer");
            var described = get(admin.describeTopics(List.of(topic)).allTopicNames()).get(topic);
            Interop.expectEqual(3, described.partitions().size(), "partitions");
            Interop.expectEqual(get(created.topicId(topic)), described.topicId(), "topic id");
            Interop.expect(get(admin.listTopics().names()).contains(topic), "the topic is listed");
            refused(admin.createTopics(List.of(wanted)).all(), TopicExistsException.class);
            get(admin.deleteTopics(List.of(topic)).all());
            Interop.waitUntil(() -> !get(admin.listTopics().names()).contains(topic), "the topic to go");
        }
    }

    private static ConfigEntry config(Admin admin, ConfigResource resource, String name) throws Exception {
        Config config = get(admin.describeConfigs(List.of(resource)).all()).get(resource);
        return config.get(name);
    }

    private static KafkaFuture<Void> alter(Admin admin, ConfigResource resource, String name, String value, AlterConfigOp.OpType kind) {
        Collection<AlterConfigOp> change = List.of(new AlterConfigOp(new ConfigEntry(name, value), kind));
        return admin.incrementalAlterConfigs(Map.of(resource, change)).all();
    }

    private static void configs(String topic) throws Exception {
        createTopic(topic, 1);
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        try (Admin admin = admin()) {
            Interop.expect(config(admin, resource, "retention.ms").isDefault(), "retention is the default at first");
            get(alter(admin, resource, "retention.ms", "86400000", AlterConfigOp.OpType.SET));
            Interop.waitUntil(() -> config(admin, resource, "retention.ms").value().equals("86400000"), "the new retention");
            Interop.expectEqual(ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG, config(admin, resource, "retention.ms").source(), "source");
            get(alter(admin, resource, "cleanup.policy", "compact", AlterConfigOp.OpType.APPEND));
            Interop.waitUntil(() -> config(admin, resource, "cleanup.policy").value().equals("delete,compact"), "both policies");
            get(alter(admin, resource, "retention.ms", null, AlterConfigOp.OpType.DELETE));
            Interop.waitUntil(() -> config(admin, resource, "retention.ms").isDefault(), "the old retention");
            var unknown = refused(alter(admin, resource, "no.such.config", "1", AlterConfigOp.OpType.SET), InvalidConfigurationException.class);
            Interop.expect(unknown.getMessage().contains("no.such.config"), "the refusal names the config: " + unknown.getMessage());
            refused(alter(admin, resource, "retention.ms", "soon", AlterConfigOp.OpType.SET), InvalidConfigurationException.class);
        }
    }

    private static void partitions(String topic) throws Exception {
        createTopic(topic, 1);
        try (Admin admin = admin()) {
            get(admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(5))).all());
            Interop.waitUntil(() -> get(admin.describeTopics(List.of(topic)).allTopicNames()).get(topic).partitions().size() == 5, "five partitions");
            var tooFew = admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(2))).all();
            refused(tooFew, org.apache.kafka.common.errors.InvalidPartitionsException.class);
        }
    }

    private static long offset(Admin admin, TopicPartition partition, OffsetSpec spec) throws Exception {
        return get(admin.listOffsets(Map.of(partition, spec)).all()).get(partition).offset();
    }

    private static void offsets(String topic) throws Exception {
        createTopic(topic, 1);
        TopicPartition partition = new TopicPartition(topic, 0);
        for (long step : new long[] {0, 100, 50}) {
            var record = new ProducerRecord<>(topic, 0, RecordChecks.TIMESTAMP_MS_FIRST + step, (byte[]) null, RecordChecks.bytes("v"));
            RecordChecks.produce(List.of(record), Map.of());
        }
        try (Admin admin = admin()) {
            Interop.expectEqual(0L, offset(admin, partition, OffsetSpec.earliest()), "earliest");
            Interop.expectEqual(3L, offset(admin, partition, OffsetSpec.latest()), "latest");
            Interop.expectEqual(1L, offset(admin, partition, OffsetSpec.maxTimestamp()), "of the greatest timestamp");
            Interop.expectEqual(1L, offset(admin, partition, OffsetSpec.forTimestamp(RecordChecks.TIMESTAMP_MS_FIRST + 1)), "by time");
            Interop.expectEqual(-1L, offset(admin, partition, OffsetSpec.forTimestamp(RecordChecks.TIMESTAMP_MS_FIRST + 101)), "after all");
        }
    }

    private static void deleteRecords(String topic) throws Exception {
        createTopic(topic, GroupChecks.PARTITIONS);
        GroupChecks.send(topic, "a");
        GroupChecks.send(topic, "b");
        TopicPartition partition = new TopicPartition(topic, 0);
        try (Admin admin = admin()) {
            var deleted = admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(1)));
            Interop.expectEqual(1L, get(deleted.lowWatermarks().get(partition)).lowWatermark(), "low watermark");
            Interop.expectEqual(1L, offset(admin, partition, OffsetSpec.earliest()), "earliest");
            Interop.expectEqual(1L, RecordChecks.consume(topic, 1).get(0).offset(), "first record left");
        }
    }

    private static void groups(String topic) throws Exception {
        createTopic(topic, GroupChecks.PARTITIONS);
        try (Admin admin = admin()) {
            try (var member = GroupChecks.join(topic, Map.of())) {
                GroupChecks.waitForShares(List.of(member), 4);
                var described = get(admin.describeConsumerGroups(List.of(topic)).all()).get(topic);
                Interop.expectEqual(GroupState.STABLE, described.groupState(), "state");
                Interop.expectEqual(member.assignment(), described.members().iterator().next().assignment().topicPartitions(), "assignment");
                Interop.expect(listed(admin).contains(topic), "the group is listed");
                member.commitSync();
            }
            Interop.waitUntil(
                () -> get(admin.describeConsumerGroups(List.of(topic)).all()).get(topic).groupState() == GroupState.EMPTY, "an empty group");
            get(admin.deleteConsumerGroups(List.of(topic)).all());
            Interop.expect(!listed(admin).contains(topic), "the group is gone");
        }
    }

    private static Set<String> listed(Admin admin) throws Exception {
        Set<String> names = new HashSet<>();
        for (GroupListing group : get(admin.listGroups().all())) {
            names.add(group.groupId());
        }
        return names;
    }

    private static void groupOffsets(String topic) throws Exception {
        createTopic(topic, 2);
        TopicPartition kept = new TopicPartition(topic, 0);
        TopicPartition dropped = new TopicPartition(topic, 1);
        try (Admin admin = admin()) {
            get(admin.alterConsumerGroupOffsets(topic, Map.of(kept, new OffsetAndMetadata(7, "note"), dropped, new OffsetAndMetadata(8))).all());
            var offsets = get(admin.listConsumerGroupOffsets(topic).partitionsToOffsetAndMetadata());
            Interop.expectEqual(new OffsetAndMetadata(7, "note"), offsets.get(kept), "committed offset");
            Interop.expectEqual(8L, offsets.get(dropped).offset(), "committed offset");
            get(admin.deleteConsumerGroupOffsets(topic, Set.of(dropped)).all());
            offsets = get(admin.listConsumerGroupOffsets(topic).partitionsToOffsetAndMetadata());
            Interop.expectEqual(Set.of(kept), offsets.keySet(), "partitions with an offset");
        }
    }

    private static void cluster(String topic) throws Exception {
        try (Admin admin = admin()) {
            var cluster = admin.describeCluster();
            Interop.expect(!get(cluster.clusterId()).isEmpty(), "a cluster id");
            Interop.expect(get(cluster.nodes()).contains(get(cluster.controller())), "the controller is one of the nodes");
        }
    }

    private static void logFolders(String topic) throws Exception {
        createTopic(topic, GroupChecks.PARTITIONS);
        GroupChecks.send(topic, "a");
        try (Admin admin = admin()) {
            int broker = get(admin.describeCluster().nodes()).iterator().next().id();
            long size = 0;
            for (var folder : get(admin.describeLogDirs(List.of(broker)).allDescriptions()).get(broker).values()) {
                Interop.expect(folder.error() == null, "a healthy folder");
                for (var replica : folder.replicaInfos().entrySet()) {
                    size += replica.getKey().topic().equals(topic) ? replica.getValue().size() : 0;
                }
            }
            Interop.expect(size > 4 * 61, "size of the topic's partitions: " + size);
        }
    }
}
