import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicLongArray;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.client.RedisException;
import org.redisson.config.Config;

/**
 * Redisson's lock at the same work as the Rust contenders, at its defaults. A thread stands where they have a task, for a thread is what owns
 * a lock there. Driven line by line:
 *
 * <pre>
 * stdin    verb argument...
 * stdout   name=figure...
 * </pre>
 *
 * The process ends when stdin closes.
 */
public final class LockBench {
    private static final List<RedissonClient> CLIENTS = new ArrayList<>();
    private static final List<Thread> WAITERS = new ArrayList<>();
    private static String url;

    public static void main(String[] args) throws Exception {
        url = args[0];
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ");
            System.out.println(switch (words[0]) {
                case "pairs" -> pairs(number(words[1]), number(words[2]));
                case "wait" -> await(words[1], number(words[2]));
                case "leave" -> leave(words[1]);
                case "take" -> take(words[1]);
                case "give" -> give(words[1]);
                case "handoffs" -> handoffs(words[1], number(words[2]), number(words[3]));
                case "turns" -> turns(words[1], number(words[2]), number(words[3]), number(words[4]), number(words[5]));
                case "served" ->
                    served(words[1], number(words[2]), number(words[3]), number(words[4]), number(words[5]));
                default -> throw new IllegalArgumentException(line);
            });
        }
        System.exit(0);
    }

    private static int number(String word) {
        return Integer.parseInt(word);
    }

    private static RedissonClient client(int index) {
        while (CLIENTS.size() <= index) {
            Config config = new Config();
            config.useSingleServer().setAddress(url);
            CLIENTS.add(Redisson.create(config));
        }
        return CLIENTS.get(index);
    }

    private static long cpu() {
        return ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
    }

    /** Each thread takes and gives back a lock of its own. */
    private static String pairs(int threads, int count) throws Exception {
        RedissonClient client = client(0);
        int each = Math.max(1, count / threads);
        long[] nanos = new long[each * threads];
        CountDownLatch ready = new CountDownLatch(threads);
        CountDownLatch go = new CountDownLatch(1);
        Thread[] running = new Thread[threads];
        for (int index = 0; index < threads; index++) {
            RLock lock = client.getLock("redisson:" + index);
            int from = index * each;
            running[index] = started(() -> {
                ready.countDown();
                go.await();
                for (int place = from; place < from + each; place++) {
                    long before = System.nanoTime();
                    lock.lock();
                    lock.unlock();
                    nanos[place] = System.nanoTime() - before;
                }
            });
        }
        ready.await();
        long cpu = cpu();
        long before = System.nanoTime();
        go.countDown();
        join(running);
        double wall = System.nanoTime() - before;
        double spent = cpu() - cpu;
        Arrays.sort(nanos);
        return figures("p50", nanos[nanos.length / 2] / 1e3, "p90", nanos[(int) (nanos.length * 0.9)] / 1e3,
            "p99", nanos[(int) (nanos.length * 0.99)] / 1e3, "p99.9", nanos[(int) (nanos.length * 0.999)] / 1e3,
            "throughput", nanos.length / wall * 1e6, "cpu", spent / 1e3 / nanos.length);
    }

    /** One client holds a lock from now on, and threads of another wait for it. */
    private static String await(String key, int threads) {
        client(0).getLock(key).lock();
        for (int index = 0; index < threads; index++) {
            RLock lock = client(1).getLock(key);
            WAITERS.add(started(() -> {
                try {
                    lock.lockInterruptibly();
                    lock.unlock();
                } catch (InterruptedException left) {
                    Thread.currentThread().interrupt();
                }
            }));
        }
        return figures("waiting", threads);
    }

    private static String leave(String key) throws Exception {
        WAITERS.forEach(Thread::interrupt);
        join(WAITERS.toArray(Thread[]::new));
        WAITERS.clear();
        client(0).getLock(key).unlock();
        return figures("waiting", 0);
    }

    private static String take(String key) {
        client(0).getLock(key).lock();
        return figures("held", 1);
    }

    private static String give(String key) {
        client(0).getLock(key).unlock();
        return figures("held", 0);
    }

    /** One client releases, another has been waiting: how long until its lock returns? */
    private static String handoffs(String key, int most, int millis) throws Exception {
        RLock lock = client(0).getLock(key);
        RLock wanted = client(1).getLock(key);
        List<Long> fromReturn = new ArrayList<>();
        List<Long> fromCall = new ArrayList<>();
        long start = System.nanoTime();
        while (fromCall.size() < most && System.nanoTime() - start < TimeUnit.MILLISECONDS.toNanos(millis)) {
            lock.lock();
            AtomicLong got = new AtomicLong();
            Thread waiting = started(() -> {
                wanted.lock();
                got.set(System.nanoTime());
                wanted.unlock();
            });
            TimeUnit.MICROSECONDS.sleep(10_000 + fromCall.size() * 377 % 9_000);
            long called = System.nanoTime();
            lock.unlock();
            long returned = System.nanoTime();
            waiting.join();
            fromReturn.add(Math.max(0, got.get() - returned));
            fromCall.add(got.get() - called);
        }
        return figures("p50", at(fromReturn, 0.5) / 1e6, "p99", at(fromReturn, 0.99) / 1e6,
            "p50 from call", at(fromCall, 0.5) / 1e6);
    }

    /** Threads of so many clients take turns on one lock; `sum` has those, too, who were still to have one when the time was over. */
    private static String turns(String key, int clients, int threads, int hold, int millis) throws Exception {
        AtomicBoolean over = new AtomicBoolean();
        AtomicLongArray served = new AtomicLongArray(clients * threads);
        AtomicLong all = new AtomicLong();
        for (int client = 0; client < clients; client++) {
            client(client);
        }
        Thread[] running = new Thread[clients * threads];
        long before = System.nanoTime();
        for (int index = 0; index < running.length; index++) {
            int own = index;
            RLock lock = client(index / threads).getLock(key);
            running[index] = started(() -> {
                while (!over.get()) {
                    lock.lock();
                    all.incrementAndGet();
                    if (!over.get()) {
                        served.incrementAndGet(own);
                        TimeUnit.MILLISECONDS.sleep(hold);
                    }
                    lock.unlock();
                }
            });
        }
        TimeUnit.MILLISECONDS.sleep(millis);
        double seconds = (System.nanoTime() - before) / 1e9;
        over.set(true);
        double[] ofThreads = new double[running.length];
        double[] ofClients = new double[clients];
        double never = 0;
        for (int index = 0; index < running.length; index++) {
            ofThreads[index] = served.get(index);
            ofClients[index / threads] += served.get(index);
            never += served.get(index) == 0 ? 1 : 0;
        }
        join(running);
        double sum = Arrays.stream(ofThreads).sum();
        return figures("acquires", sum / seconds, "sum", all.get(), "Jain fairness", jain(ofThreads),
            "Jain fairness of managers", jain(ofClients), "never served", never);
    }

    /** Threads of so many clients wait for one lock, and give it back at once: until so many have had it, or the time is over. */
    private static String served(String key, int clients, int threads, int enough, int millis) throws Exception {
        RLock held = client(clients).getLock(key);
        held.lock();
        AtomicLong served = new AtomicLong();
        Thread[] running = new Thread[clients * threads];
        for (int index = 0; index < running.length; index++) {
            RLock lock = client(index / threads).getLock(key);
            running[index] = started(() -> {
                try {
                    lock.lockInterruptibly();
                    served.incrementAndGet();
                    lock.unlock();
                } catch (InterruptedException left) {
                    Thread.currentThread().interrupt();
                } catch (RedisException failed) {
                    // As it calls an interruption while it asks the server.
                    if (!(failed.getCause() instanceof InterruptedException)) {
                        throw failed;
                    }
                }
            });
        }
        TimeUnit.MILLISECONDS.sleep(1000);
        long before = System.nanoTime();
        held.unlock();
        while (served.get() < enough && System.nanoTime() - before < TimeUnit.MILLISECONDS.toNanos(millis)) {
            TimeUnit.MILLISECONDS.sleep(1);
        }
        double releases = served.get() + 1;
        double seconds = (System.nanoTime() - before) / 1e9;
        for (Thread thread : running) {
            thread.interrupt();
        }
        join(running);
        return figures("releases", releases / seconds, "sum", releases);
    }

    /** 1 if all have had as much, and one of so many if one has had everything (source: Jain, Chiu, Hawe 1984). */
    private static double jain(double[] counts) {
        double sum = Arrays.stream(counts).sum();
        return sum * sum / (counts.length * Arrays.stream(counts).map(count -> count * count).sum());
    }

    private static double at(List<Long> samples, double part) {
        long[] sorted = samples.stream().mapToLong(Long::longValue).sorted().toArray();
        return sorted[(int) (sorted.length * part)];
    }

    private interface Work {
        void run() throws Exception;
    }

    private static Thread started(Work work) {
        Thread thread = new Thread(() -> {
            try {
                work.run();
            } catch (Exception failure) {
                failure.printStackTrace();
                System.exit(1);
            }
        });
        thread.setDaemon(true);
        thread.start();
        return thread;
    }

    private static void join(Thread[] threads) throws InterruptedException {
        for (Thread thread : threads) {
            thread.join();
        }
    }

    private static String figures(Object... words) {
        StringBuilder line = new StringBuilder();
        for (int index = 0; index < words.length; index += 2) {
            line.append(words[index]).append('=').append(words[index + 1]).append('|');
        }
        return line.toString();
    }
}
