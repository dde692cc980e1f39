import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Consumer groups: shares, hand-over, commit and resume, with each of Kafka's own assignors, and static members. */
final class GroupChecks {
    static final int PARTITIONS = 4;

    private GroupChecks() {}

    static void addTo(List<Interop.Named> checks) {
        for (Class<?> assignor : List.of(RangeAssignor.class, RoundRobinAssignor.class, StickyAssignor.class, CooperativeStickyAssignor.class)) {
            checks.add(new Interop.Named("group_" + assignor.getSimpleName(), topic -> sharesAndResumes(topic, assignor)));
        }
        checks.add(new Interop.Named("group_static_member", GroupChecks::staticMemberReturns));
    }

    static KafkaConsumer<byte[], byte[]> join(String topic, Map<String, Object> more) {
        Map<String, Object> settings = new HashMap<>(Map.of(
            "group.id", topic, "auto.offset.reset", "earliest", "enable.auto.commit", false, "heartbeat.interval.ms", 200));
        settings.putAll(more);
        var consumer = new KafkaConsumer<>(Interop.settings(settings), new ByteArrayDeserializer(), new ByteArrayDeserializer());
        consumer.subscribe(List.of(topic));
        return consumer;
    }

    /** Polls the members in turn until each owns this many partitions, all of them together and none twice. */
    static void waitForShares(List<KafkaConsumer<byte[], byte[]>> members, int each) throws Exception {
        Interop.waitUntil(() -> {
            Set<TopicPartition> all = new HashSet<>();
            boolean even = true;
            for (var member : members) {
                Interop.expect(member.poll(Duration.ofMillis(50)).isEmpty(), "a record before anything new was sent");
                even &= member.assignment().size() == each;
                all.addAll(member.assignment());
            }
            return even && all.size() == PARTITIONS;
        }, "shares of " + each);
    }

    static void send(String topic, String round) throws Exception {
        List<ProducerRecord<byte[], byte[]>> records = new ArrayList<>();
        for (int partition = 0; partition < PARTITIONS; partition++) {
            records.add(new ProducerRecord<>(topic, partition, null, RecordChecks.bytes(round + partition)));
        }
        RecordChecks.produce(records, Map.of());
    }

    static void read(List<KafkaConsumer<byte[], byte[]>> members, String round) throws Exception {
        List<String> found = new ArrayList<>();
        Interop.waitUntil(() -> {
            for (var member : members) {
                for (ConsumerRecord<byte[], byte[]> record : member.poll(Duration.ofMillis(50))) {
                    found.add(new String(record.value()));
                }
            }
            return found.size() >= PARTITIONS;
        }, "the records of round " + round);
        Set<String> wanted = new TreeSet<>();
        for (int partition = 0; partition < PARTITIONS; partition++) {
            wanted.add(round + partition);
        }
        Interop.expectEqual(PARTITIONS, found.size(), "count of records");
        Interop.expectEqual(wanted, new TreeSet<>(found), "records of round " + round);
    }

    private static void sharesAndResumes(String topic, Class<?> assignor) throws Exception {
        AdminChecks.createTopic(topic, PARTITIONS);
        Map<String, Object> settings = Map.of("partition.assignment.strategy", assignor.getName());
        try (var first = join(topic, settings)) {
            waitForShares(List.of(first), 4);
            try (var second = join(topic, settings)) {
                waitForShares(List.of(first, second), 2);
                send(topic, "both");
                read(List.of(first, second), "both");
                first.commitSync();
                second.commitSync();
            }
            waitForShares(List.of(first), 4);
            send(topic, "alone");
            read(List.of(first), "alone");
            first.commitSync();
        }
        send(topic, "later");
        try (var third = join(topic, settings)) {
            read(List.of(third), "later");
        }
    }

    private static void staticMemberReturns(String topic) throws Exception {
        AdminChecks.createTopic(topic, PARTITIONS);
        try (var stays = join(topic, Map.of("group.instance.id", "stays"))) {
            var goes = join(topic, Map.of("group.instance.id", "goes"));
            waitForShares(List.of(stays, goes), 2);
            Set<TopicPartition> share = Set.copyOf(goes.assignment());
            int generation = stays.groupMetadata().generationId();
            goes.close();
            try (var back = join(topic, Map.of("group.instance.id", "goes"))) {
                waitForShares(List.of(stays, back), 2);
                Interop.expectEqual(share, back.assignment(), "share of the member that came back");
                Interop.expectEqual(generation, stays.groupMetadata().generationId(), "generation");
            }
        }
    }
}
