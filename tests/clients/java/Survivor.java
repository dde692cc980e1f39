import java.time.Duration;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Kafka's own clients, with their default settings, through whatever happens to the cluster. Usage: Survivor BOOTSTRAP
 * TOPIC. What it does and prints is described in clients/survivors.py.
 */
public final class Survivor extends ClientProgram<Integer, Integer> {
    private static final long FINISH_MS_MAX = 60_000;

    private Survivor(String bootstrap, String topic) {
        super(bootstrap, topic);
    }

    public static void main(String[] arguments) throws Exception {
        new Survivor(arguments[0], arguments[1]).run();
    }

    @Override
    void produce() {
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

    @Override
    void consume(Thread producing) {
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
