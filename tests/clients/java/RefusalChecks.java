import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.InvalidRecordException;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.errors.UnsupportedVersionException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** What is refused is refused at once, in words, and record by record where it is about records. */
final class RefusalChecks {
    private RefusalChecks() {}

    interface Attempt {
        void run() throws Exception;
    }

    static void addTo(List<Interop.Named> checks) {
        checks.add(new Interop.Named("refused_records", RefusalChecks::recordsAreNamed));
        checks.add(new Interop.Named("refused_consumer_protocol", RefusalChecks::consumerProtocol));
        checks.add(new Interop.Named("refused_share_group", RefusalChecks::shareGroup));
        checks.add(new Interop.Named("refused_transactions", RefusalChecks::transactions));
        checks.add(new Interop.Named("refused_sasl", RefusalChecks::sasl));
    }

    private static void recordsAreNamed(String topic) throws Exception {
        try (Admin admin = Admin.create(Interop.settings(Map.of()))) {
            admin.createTopics(List.of(new NewTopic(topic, 1, (short) 1).configs(Map.of("cleanup.policy", "compact")))).all().get();
        }
        List<Throwable> keyless = sentTogether(topic, new String[] {"a", null, "b"}, 0);
        Interop.expect(keyless.get(1) instanceof InvalidRecordException, "the record without a key: " + keyless.get(1));
        Interop.expect(keyless.get(1).getMessage().contains("no key"), "its message: " + keyless.get(1).getMessage());
        for (int good : List.of(0, 2)) {
            Throwable error = keyless.get(good);
            Interop.expect(error instanceof KafkaException && !(error instanceof InvalidRecordException), "a good record: " + error);
        }
        List<Throwable> early = sentTogether(topic, new String[] {"a", "b", "c"}, Duration.ofHours(5).toMillis());
        // The client makes an InvalidRecordException of every record that an answer names, whatever the answer's code.
        Interop.expect(early.get(0).getMessage().contains("ahead of the broker's clock"), "a record out of time: " + early.get(0));
    }

    /** What became of records that went out in one batch. */
    private static List<Throwable> sentTogether(String topic, String[] keys, long aheadMs) throws Exception {
        List<Throwable> errors = new ArrayList<>();
        Map<String, Object> settings = Map.of("linger.ms", 60_000, "enable.idempotence", false);
        try (var producer = new KafkaProducer<>(Interop.settings(settings), new ByteArraySerializer(), new ByteArraySerializer())) {
            List<Future<RecordMetadata>> futures = new ArrayList<>();
            for (String key : keys) {
                long timestamp = System.currentTimeMillis() + aheadMs;
                futures.add(producer.send(new ProducerRecord<>(topic, 0, timestamp, RecordChecks.bytes(key), RecordChecks.bytes("v"))));
            }
            producer.flush();
            for (Future<RecordMetadata> future : futures) {
                try {
                    future.get(Interop.ANSWER_MS_MAX, TimeUnit.MILLISECONDS);
                    errors.add(null);
                } catch (ExecutionException error) {
                    errors.add(error.getCause());
                }
            }
        }
        return errors;
    }

    private static void consumerProtocol(String topic) throws Exception {
        Map<String, Object> settings = new HashMap<>(Map.of("group.id", topic, "group.protocol", "consumer"));
        try (var consumer = new org.apache.kafka.clients.consumer.KafkaConsumer<>(
                Interop.settings(settings), new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of(topic));
            expectAtOnce(UnsupportedVersionException.class, () -> consumer.poll(Duration.ofMillis(200)));
        }
    }

    private static void shareGroup(String topic) throws Exception {
        try (var consumer = new KafkaShareConsumer<>(
                Interop.settings(Map.of("group.id", topic)), new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of(topic));
            expectAtOnce(UnsupportedVersionException.class, () -> consumer.poll(Duration.ofMillis(200)));
        }
    }

    private static void transactions(String topic) throws Exception {
        Map<String, Object> settings = Map.of("transactional.id", topic, "max.block.ms", Interop.ANSWER_MS_MAX);
        try (var producer = new KafkaProducer<>(Interop.settings(settings), new ByteArraySerializer(), new ByteArraySerializer())) {
            expectAtOnce(KafkaException.class, producer::initTransactions);
        }
    }

    private static void sasl(String topic) throws Exception {
        Map<String, Object> settings = Map.of(
            "security.protocol", "SASL_PLAINTEXT", "sasl.mechanism", "PLAIN", "max.block.ms", Interop.ANSWER_MS_MAX,
            "sasl.jaas.config", "org.apache.kafka.common.security.plain.PlainLoginModule required username=\"u\" password=\"p\";");
        try (var producer = new KafkaProducer<>(Interop.settings(settings), new ByteArraySerializer(), new ByteArraySerializer())) {
            expectAtOnce(KafkaException.class, () -> producer.partitionsFor(topic));
        }
    }

    /** Tries until something is thrown, which must be of this kind and no timeout. */
    private static void expectAtOnce(Class<? extends Throwable> kind, Attempt attempt) throws Exception {
        Interop.waitUntil(() -> {
            try {
                attempt.run();
                return false;
            } catch (Exception thrown) {
                Throwable error = thrown instanceof ExecutionException ? thrown.getCause() : thrown;
                boolean late = error instanceof org.apache.kafka.common.errors.TimeoutException;
                Interop.expect(kind.isInstance(error) && !late, "wanted " + kind.getSimpleName() + ", found " + error);
                return true;
            }
        }, kind.getSimpleName());
    }
}
