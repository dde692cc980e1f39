import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicBoolean;

/**
 * What programs around a client share: they tell how far they are, and end when their stdin does. What they print is
 * described in clients/client_program.py.
 */
abstract class ClientProgram<Acked, Read> {
    static final long PAUSE_MS = 10;
    private static final long TELL_MS = 500;

    final String topic;
    final List<Acked> acked = new ArrayList<>();
    final List<Read> read = new ArrayList<>();
    final AtomicBoolean ending = new AtomicBoolean();
    private final List<String> errors = new ArrayList<>();

    ClientProgram(String bootstrap, String topic) {
        Interop.bootstrap = bootstrap;
        this.topic = topic;
    }

    /** Until it is `ending`. */
    abstract void produce();

    /** Until the producer has ended and everything is read. */
    abstract void consume(Thread producing);

    /** What else there is to say in the end, as members of a JSON object, each with a comma behind it. */
    String more() {
        return "";
    }

    void run() throws Exception {
        background(this::waitForEnd);
        background(this::tell);
        Thread producing = background(this::produce);
        consume(producing);
        producing.join();
        synchronized (this) {
            List<String> quoted = errors.stream().map(Interop::quote).toList();
            System.out.println("{" + more() + "\"acked\": " + acked + ", \"read\": " + read + ", \"errors\": " + quoted + "}");
        }
        System.exit(0); // A client that could not be closed must not keep the program alive.
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

    static void pause(long milliseconds) {
        try {
            Thread.sleep(milliseconds);
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    synchronized void failed(String where, Exception error) {
        errors.add(where + ": " + error);
    }
}
