import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.stream.IntStream;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Kafka's own clients on one side of a network that splits. Usage: SplitClient BOOTSTRAP TOPIC NAME PARTITIONS. What it
 * does and prints is described in clients/split_client.py.
 */
public final class SplitClient extends ClientProgram<String, String> {
    private static final long QUIET_MS = 8_000;
    private static final long READ_MS_MAX = 90_000;
    private static final Map<String, Object> IMPATIENT =
            Map.of("request.timeout.ms", 3_000, "metadata.max.age.ms", 1_000, "reconnect.backoff.max.ms", 1_000);

    private final String name;
    private final int partitions;
    private int sent;

    private SplitClient(String bootstrap, String topic, String name, int partitions) {
        super(bootstrap, topic);
        this.name = name;
        this.partitions = partitions;
    }

    public static void main(String[] arguments) throws Exception {
        new SplitClient(arguments[0], arguments[1], arguments[2], Integer.parseInt(arguments[3])).run();
    }

    @Override
    String more() {
        return "\"sent\": " + sent + ", ";
    }

    private static long nowMs() {
        return System.nanoTime() / 1_000_000; // On Linux the same clock as Python's monotonic one.
    }

    @Override
    void produce() {
        var settings = new HashMap<String, Object>(IMPATIENT);
        settings.put("delivery.timeout.ms", 90_000);
        try (var producer = new KafkaProducer<>(Interop.settings(settings), new StringSerializer(), new StringSerializer())) {
            for (int number = 0; !ending.get(); number++) {
                int which = number;
                long sentMs = nowMs();
                String value = name + "-" + which;
                synchronized (this) {
                    sent++;
                }
                producer.send(new ProducerRecord<>(topic, which % partitions, null, value), (place, error) -> note(which, sentMs, place, error));
                pause(PAUSE_MS);
            }
        }
    }

    private synchronized void note(int number, long sentMs, RecordMetadata place, Exception error) {
        if (error == null) {
            acked.add("[" + number + ", " + place.partition() + ", " + place.offset() + ", " + sentMs + ", " + nowMs() + "]");
        } else {
            failed("produce", error);
        }
    }

    @Override
    void consume(Thread producing) {
        var settings = new HashMap<String, Object>(IMPATIENT);
        settings.put("auto.offset.reset", "none");
        settings.put("default.api.timeout.ms", 10_000);
        try (var consumer = new KafkaConsumer<>(Interop.settings(settings), new StringDeserializer(), new StringDeserializer())) {
            var places = IntStream.range(0, partitions).mapToObj(index -> new TopicPartition(topic, index)).toList();
            consumer.assign(places);
            places.forEach(place -> consumer.seek(place, 0));
            long newest = 0;
            long ended = Long.MAX_VALUE;
            while (nowMs() < Math.min(Math.max(ended, newest) + QUIET_MS, ended + READ_MS_MAX) || ended == Long.MAX_VALUE) {
                if (poll(consumer)) {
                    newest = nowMs();
                }
                if (!producing.isAlive()) {
                    ended = Math.min(ended, nowMs());
                }
            }
        }
    }

    private boolean poll(KafkaConsumer<String, String> consumer) {
        try {
            var found = consumer.poll(Duration.ofMillis(100));
            synchronized (this) {
                found.forEach(record -> read.add(
                        "[" + record.partition() + ", " + record.offset() + ", " + Interop.quote(record.value()) + "]"));
            }
            return !found.isEmpty();
        } catch (RuntimeException error) {
            failed("consume", error);
            pause(PAUSE_MS);
            return false;
        }
    }
}
