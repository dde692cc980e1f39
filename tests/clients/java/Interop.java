import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.UUID;

/**
 * Kafka's own Java clients against a broker: many checks in one JVM, one JSON line per check on standard output.
 * Usage: Interop BOOTSTRAP. Every check runs, whatever became of the others; the tests judge the lines.
 */
public final class Interop {
    interface Check {
        void run(String topic) throws Exception;
    }

    record Named(String name, Check check) {}

    static final long ANSWER_MS_MAX = 20_000;

    static String bootstrap;

    public static void main(String[] arguments) {
        bootstrap = arguments[0];
        List<Named> checks = new ArrayList<>();
        RecordChecks.addTo(checks);
        GroupChecks.addTo(checks);
        AdminChecks.addTo(checks);
        RefusalChecks.addTo(checks);
        for (Named named : checks) {
            report(named);
        }
        System.exit(0); // A client that could not be closed must not keep the program alive.
    }

    private static void report(Named named) {
        String failure = "";
        try {
            named.check.run("java-" + named.name + "-" + UUID.randomUUID().toString().substring(0, 8));
        } catch (Throwable thrown) {
            failure = describe(thrown);
        }
        System.out.println("{\"check\": " + quote(named.name) + ", \"failure\": " + quote(failure) + "}");
    }

    private static String describe(Throwable thrown) {
        StringBuilder text = new StringBuilder();
        for (Throwable cause = thrown; cause != null; cause = cause.getCause()) {
            text.append(cause).append("; ");
        }
        for (StackTraceElement frame : thrown.getStackTrace()) {
            if (frame.getClassName().endsWith("Checks")) {
                text.append(" at ").append(frame);
            }
        }
        return text.toString();
    }

    static String quote(String text) {
        StringBuilder quoted = new StringBuilder("\"");
        for (char letter : text.toCharArray()) {
            boolean plain = letter >= ' ' && letter < 127 && letter != '"' && letter != '\\';
            quoted.append(plain ? String.valueOf(letter) : String.format("\\u%04x", (int) letter));
        }
        return quoted.append('"').toString();
    }

    static Properties settings(Map<String, Object> more) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.putAll(more);
        return settings;
    }

    static void expect(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }

    static void expectEqual(Object wanted, Object found, String what) {
        expect(wanted.equals(found), what + ": wanted " + wanted + ", found " + found);
    }

    interface Condition {
        boolean holds() throws Exception;
    }

    /** Asks until the condition holds; asking a client waits a little by itself, so there is no other pause. */
    static void waitUntil(Condition condition, String what) throws Exception {
        long deadline = System.nanoTime() + ANSWER_MS_MAX * 1_000_000;
        while (!condition.holds()) {
            expect(System.nanoTime() < deadline, "waited in vain for " + what);
            Thread.sleep(5);
        }
    }
}
