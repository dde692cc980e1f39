import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Kafka's own clients, with their default settings, through whatever happens to the cluster. Usage: Survivor BOOTSTRAP
 * TOPIC. What it does and prints is described in clients/survivors.py.
 */
public final class Survivor {
    private static final long PAUSE_MS = 10;
    private static final long TELL_MS = 500;
    private static final long FINISH_MS_MAX = 60_000;

    private final String bootstrap;
    private final String topic;
    private final List<Integer> acked = new ArrayList<>();
    private final List<Integer> read = new ArrayList<>();
    private final List<String> errors = new ArrayList<>();
    private final AtomicBoolean ending = new AtomicBoolean();

    private Survivor(String bootstrap, String topic) {
        this.bootstrap = bootstrap;
        this.topic = topic;
    }

    public static void main(String[] arguments) throws Exception {
        new Survivor(arguments[0], arguments[1]).run();
        System.exit(0); // A client that could not be closed must not keep the program alive.
    }

    private void run() throws Exception {
        Interop.bootstrap = bootstrap;
        background(this::waitForEnd);
        background(this::tell);
        Thread producing = background(this::produce);
        consume(producing);
        producing.join();
        synchronized (this) {
            List<String> quoted = errors.stream().map(Interop::quote).toList();
            System.out.println("{\"acked\": " + acked + ", \"read\": " + read + ", \"errors\": " + quoted + "}");
        }
    }

    private static Thread background(Runnable work) {
        Thread thread = new Thread(work);
        thread.setDaemon(true);
        thread.start();
        return thread;
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
                System.out.println("{\"acked\": " + acked.size() + ", \"read\": " + read.size() + "}");
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
        try (var producer = new KafkaProducer<>(Interop.settings(Map.of()), new StringSerializer(), new StringSerializer())) {
            for (int number = 0; !ending.get(); number++) {
                int sent = number;
                producer.send(new ProducerRecord<>(topic, "" + sent, "" + sent), (place, error) -> note(sent, error));
                pause(PAUSE_MS);
            }
        }
    }

    private synchronized void note(int number, Exception error) {
        if (error == null) {
            acked.add(number);
        } else {
            failed("produce", error);
        }
    }

    private void consume(Thread producing) {
        Map<String, Object> settings = Map.of("group.id", topic, "auto.offset.reset", "earliest");
        try (var consumer = new KafkaConsumer<>(Interop.settings(settings), new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            long deadline = Long.MAX_VALUE;
            while (producing.isAlive() || !(isAllRead() || System.currentTimeMillis() > deadline)) {
                if (!producing.isAlive()) {
                    deadline = Math.min(deadline, System.currentTimeMillis() + FINISH_MS_MAX);
                }
                poll(consumer);
            }
        }
    }

    private void poll(KafkaConsumer<String, String> consumer) {
        try {
            var found = consumer.poll(Duration.ofMillis(100));
            synchronized (this) {
                found.forEach(record -> read.add(Integer.valueOf(record.value())));
            }
        } catch (RuntimeException error) {
            failed("consume", error);
        }
    }

    private synchronized boolean isAllRead() {
        return new HashSet<>(read).containsAll(acked);
    }
}
