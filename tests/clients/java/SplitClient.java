import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicBoolean;
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
 * does and prints is described in chaos/split_client.py.
 */
public final class SplitClient {
    private static final long PAUSE_MS = 10;
    private static final long TELL_MS = 500;
    private static final long QUIET_MS = 8_000;
    private static final long READ_MS_MAX = 90_000;
    private static final Map<String, Object> IMPATIENT =
            Map.of("request.timeout.ms", 3_000, "metadata.max.age.ms", 1_000, "reconnect.backoff.max.ms", 1_000);

    private final String topic;
    private final String name;
    private final int partitions;
    private final List<String> acks = new ArrayList<>();
    private final List<String> reads = new ArrayList<>();
    private final List<String> errors = new ArrayList<>();
    private final AtomicBoolean ending = new AtomicBoolean();
    private int sent;

    private SplitClient(String topic, String name, int partitions) {
        this.topic = topic;
        this.name = name;
        this.partitions = partitions;
    }

    public static void main(String[] arguments) throws Exception {
        Interop.bootstrap = arguments[0];
        new SplitClient(arguments[1], arguments[2], Integer.parseInt(arguments[3])).run();
        System.exit(0); // A client that could not be closed must not keep the program alive.
    }

    private void run() throws Exception {
        background(this::waitForEnd);
        background(this::tell);
        Thread producing = background(this::produce);
        consume(producing);
        producing.join();
        synchronized (this) {
            List<String> quoted = errors.stream().map(Interop::quote).toList();
            System.out.println("{\"sent\": " + sent + ", \"acks\": " + acks + ", \"reads\": " + reads
                    + ", \"errors\": " + quoted + "}");
        }
    }

    private static Thread background(Runnable work) {
        Thread thread = new Thread(work);
        thread.setDaemon(true);
        thread.start();
        return thread;
    }

    private static long nowMs() {
        return System.nanoTime() / 1_000_000; // On Linux the same clock as Python's monotonic one.
    }

    private void waitForEnd() {
        try {
            System.in.readAllBytes();
        } catch (IOException error) {
            failed("stdin", error);
        }
        ending.set(true);
    }

    private void tell() {
        while (!ending.get()) {
            pause(TELL_MS);
            synchronized (this) {
                System.out.println("{\"acked\": " + acks.size() + ", \"read\": " + reads.size() + "}");
            }
        }
    }

    private static void pause(long milliseconds) {
        try {
            Thread.sleep(milliseconds);
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    private synchronized void failed(String where, Exception error) {
        errors.add(where + ": " + error);
    }

    private void produce() {
        var settings = new java.util.HashMap<String, Object>(IMPATIENT);
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
            acks.add("[" + number + ", " + place.partition() + ", " + place.offset() + ", " + sentMs + ", " + nowMs() + "]");
        } else {
            failed("produce", error);
        }
    }

    private void consume(Thread producing) {
        var settings = new java.util.HashMap<String, Object>(IMPATIENT);
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
                found.forEach(record -> reads.add(
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
