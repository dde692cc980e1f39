import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Records go out and come back byte for byte, with every codec and with idempotence on and off. */
final class RecordChecks {
    static final long TIMESTAMP_MS_FIRST = 1_700_000_000_123L;

    private RecordChecks() {}

    static void addTo(List<Interop.Named> checks) {
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
            checks.add(new Interop.Named("records_" + codec, topic -> comesBack(topic, Map.of("compression.type", codec))));
        }
        Map<String, Object> plain = Map.of("enable.idempotence", false, "acks", "1");
        checks.add(new Interop.Named("records_without_idempotence", topic -> comesBack(topic, plain)));
        checks.add(new Interop.Named("idempotent_production", RecordChecks::idempotent));
    }

    static byte[] bytes(String text) {
        return text == null ? null : text.getBytes(StandardCharsets.UTF_8);
    }

    private static byte[] noise(int count) {
        byte[] noise = new byte[count];
        new Random(count).nextBytes(noise);
        return noise;
    }

    private static List<ProducerRecord<byte[], byte[]>> samples(String topic) {
        byte[][][] shapes = {
            {bytes("plain"), bytes("value")}, {null, bytes("no key")}, {bytes("tombstone"), null}, {null, null},
            {new byte[0], new byte[0]}, {noise(256), noise(20_000)}, {bytes("long"), bytes("anabranch ".repeat(2_000))},
        };
        List<ProducerRecord<byte[], byte[]>> samples = new ArrayList<>();
        for (byte[][] shape : shapes) {
            long timestamp = TIMESTAMP_MS_FIRST + 7L * samples.size();
            List<Header> headers = samples.size() % 2 == 0 ? List.of() : headers();
            samples.add(new ProducerRecord<>(topic, 0, timestamp, shape[0], shape[1], headers));
        }
        return samples;
    }

    private static List<Header> headers() {
        return List.of(
            new RecordHeader("first", bytes("1")), new RecordHeader("nothing", (byte[]) null),
            new RecordHeader("", new byte[0]), new RecordHeader("first", noise(300)), new RecordHeader("schl\u00fcssel", bytes("2")));
    }

    static List<RecordMetadata> produce(List<ProducerRecord<byte[], byte[]>> records, Map<String, Object> settings)
            throws Exception {
        List<RecordMetadata> places = new ArrayList<>();
        try (var producer = new KafkaProducer<>(Interop.settings(settings), new ByteArraySerializer(), new ByteArraySerializer())) {
            List<Future<RecordMetadata>> futures = new ArrayList<>();
            for (ProducerRecord<byte[], byte[]> record : records) {
                futures.add(producer.send(record));
            }
            for (Future<RecordMetadata> future : futures) {
                places.add(future.get(Interop.ANSWER_MS_MAX, TimeUnit.MILLISECONDS));
            }
        }
        return places;
    }

    static List<ConsumerRecord<byte[], byte[]>> consume(String topic, int count) throws Exception {
        List<ConsumerRecord<byte[], byte[]>> found = new ArrayList<>();
        Map<String, Object> settings = new HashMap<>(Map.of("auto.offset.reset", "earliest", "max.partition.fetch.bytes", 4096));
        try (var consumer = new KafkaConsumer<>(Interop.settings(settings), new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.assign(List.of(new TopicPartition(topic, 0)));
            Interop.waitUntil(() -> {
                consumer.poll(Duration.ofMillis(100)).forEach(found::add);
                return found.size() >= count;
            }, count + " records");
        }
        return found;
    }

    private static void comesBack(String topic, Map<String, Object> settings) throws Exception {
        AdminChecks.createTopic(topic, 1);
        List<ProducerRecord<byte[], byte[]>> sent = samples(topic);
        produce(sent, settings);
        List<ConsumerRecord<byte[], byte[]>> found = consume(topic, sent.size());
        Interop.expectEqual(sent.size(), found.size(), "count of records");
        for (int number = 0; number < sent.size(); number++) {
            same(sent.get(number), found.get(number), number);
        }
    }

    private static void same(ProducerRecord<byte[], byte[]> sent, ConsumerRecord<byte[], byte[]> found, int number) {
        Interop.expectEqual((long) number, found.offset(), "offset");
        Interop.expectEqual(sent.timestamp(), found.timestamp(), "timestamp of " + number);
        Interop.expectEqual(TimestampType.CREATE_TIME, found.timestampType(), "kind of timestamp of " + number);
        Interop.expect(Arrays.equals(sent.key(), found.key()), "key of " + number);
        Interop.expect(Arrays.equals(sent.value(), found.value()), "value of " + number);
        Interop.expect(Arrays.equals(sent.headers().toArray(), found.headers().toArray()), "headers of " + number);
    }

    private static void idempotent(String topic) throws Exception {
        AdminChecks.createTopic(topic, 1);
        List<ProducerRecord<byte[], byte[]>> sent = new ArrayList<>();
        for (int number = 0; number < 2_000; number++) {
            sent.add(new ProducerRecord<>(topic, 0, null, bytes("" + number)));
        }
        Map<String, Object> settings = Map.of("enable.idempotence", true, "batch.size", 400, "max.in.flight.requests.per.connection", 5);
        List<RecordMetadata> places = produce(sent, settings);
        List<ConsumerRecord<byte[], byte[]>> found = consume(topic, sent.size());
        Interop.expectEqual(sent.size(), found.size(), "count of records");
        for (int number = 0; number < sent.size(); number++) {
            Interop.expectEqual((long) number, places.get(number).offset(), "acknowledged offset");
            Interop.expectEqual("" + number, new String(found.get(number).value(), StandardCharsets.UTF_8), "value");
        }
    }
}
