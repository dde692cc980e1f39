import java.util.Map;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/** One record for each key, where Java's default partitioner puts it. Usage: KeyWriter BOOTSTRAP TOPIC KEY... */
public final class KeyWriter {
    public static void main(String[] arguments) {
        Interop.bootstrap = arguments[0];
        try (var producer = new KafkaProducer<>(Interop.settings(Map.of()), new StringSerializer(), new StringSerializer())) {
            for (int at = 2; at < arguments.length; at++) {
                producer.send(new ProducerRecord<>(arguments[1], arguments[at], "java"));
            }
        }
    }
}
