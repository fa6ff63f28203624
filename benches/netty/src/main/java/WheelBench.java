import io.netty.util.HashedWheelTimer;
import io.netty.util.Timeout;
import io.netty.util.TimerTask;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;

/** Netty's HashedWheelTimer at the same work as the Rust contenders. One line per figure: bench|metric|unit|samples. */
public final class WheelBench {
    private static final TimerTask NOTHING = timeout -> { };

    public static void main(String[] args) throws Exception {
        int rounds = args.length > 0 ? Integer.parseInt(args[0]) : 5;
        pairs(rounds, 1, "shared: schedule+cancel, clock read");
        pairs(rounds, 2, "shared: schedule+cancel, 2 threads");
        million(Math.min(rounds, 5));
        idle();
        System.exit(0);
    }

    private static void pairs(int rounds, int threads, String bench) throws Exception {
        HashedWheelTimer timer = new HashedWheelTimer(1, TimeUnit.MILLISECONDS, 4096);
        // The worker takes 100 000 per tick; in smaller portions with pauses it keeps up, and the pauses are not counted.
        int portion = 50_000;
        double[] samples = new double[rounds];
        double[] all = new double[rounds];
        for (int round = -3; round < rounds; round++) {
            AtomicLong nanos = new AtomicLong();
            long before = cpu();
            int portions = 20;
            for (int part = 0; part < portions; part++) {
                Thread[] running = new Thread[threads];
                for (int thread = 0; thread < threads; thread++) {
                    running[thread] = new Thread(() -> {
                        long start = System.nanoTime();
                        for (int id = 0; id < portion; id++) {
                            timer.newTimeout(NOTHING, 100 + (id & 2047), TimeUnit.MILLISECONDS).cancel();
                        }
                        nanos.addAndGet(System.nanoTime() - start);
                    });
                    running[thread].start();
                }
                for (Thread thread : running) {
                    thread.join();
                }
                Thread.sleep(5);
            }
            if (round >= 0) {
                double pairs = (double) portion * portions * threads;
                samples[round] = nanos.get() / pairs;
                all[round] = (cpu() - before) / pairs;
            }
        }
        timer.stop();
        print(bench, "time", threads == 1 ? "ns/pair" : "ns/pair of each thread", samples);
        // Of the whole process: a caller leaves the rest to the worker and to the collector.
        print(bench, "cpu", "ns/pair", all);
    }

    private static void million(int rounds) throws Exception {
        int count = 1_000_000;
        double[] cpu = new double[rounds];
        double[] p50 = new double[rounds];
        double[] p99 = new double[rounds];
        for (int round = -1; round < rounds; round++) {
            HashedWheelTimer timer = new HashedWheelTimer(1, TimeUnit.MILLISECONDS, 4096);
            CountDownLatch left = new CountDownLatch(count);
            long[] late = new long[count / 16 + 1];
            long start = System.nanoTime() + 3_000_000_000L;
            for (int id = 0; id < count; id++) {
                long due = start + (((id * 0x9E3779B97F4A7C15L) >>> 44) * 1_000_000_000L >>> 20);
                int own = id;
                timer.newTimeout(timeout -> {
                    if (own % 16 == 0) {
                        late[own / 16] = System.nanoTime() - due;
                    }
                    left.countDown();
                }, due - System.nanoTime(), TimeUnit.NANOSECONDS);
            }
            while (System.nanoTime() < start - 100_000_000L) {
                Thread.sleep(10);
            }
            long before = cpu();
            left.await();
            long used = cpu() - before;
            timer.stop();
            Arrays.sort(late);
            if (round >= 0) {
                cpu[round] = (double) used / count;
                p50[round] = late[late.length / 2] / 1e6;
                p99[round] = late[(int) (late.length * 0.99)] / 1e6;
            }
        }
        print("1M timers over 1 s", "cpu", "ns/timer", cpu);
        print("1M timers over 1 s", "lateness p50", "ms", p50);
        print("1M timers over 1 s", "lateness p99", "ms", p99);
    }

    private static void idle() throws Exception {
        HashedWheelTimer timer = new HashedWheelTimer(1, TimeUnit.MILLISECONDS, 4096);
        timer.newTimeout(NOTHING, 1, TimeUnit.HOURS);
        Thread.sleep(500);
        long before = switches("pool-");
        Thread.sleep(5000);
        print("idle wakeups", "one far timer", "1/s", new double[] {(switches("pool-") - before) / 5.0});
        timer.stop();
    }

    private static long cpu() {
        return ((com.sun.management.OperatingSystemMXBean) java.lang.management.ManagementFactory
            .getOperatingSystemMXBean()).getProcessCpuTime();
    }

    /** Voluntary context switches of the threads of that name. */
    private static long switches(String name) throws Exception {
        long sum = 0;
        try (var tasks = Files.list(Path.of("/proc/self/task"))) {
            for (Path task : (Iterable<Path>) tasks::iterator) {
                if (Files.readString(task.resolve("comm")).startsWith(name)) {
                    for (String line : Files.readAllLines(task.resolve("status"))) {
                        if (line.startsWith("voluntary_ctxt_switches")) {
                            sum += Long.parseLong(line.replaceAll("\\D", ""));
                        }
                    }
                }
            }
        }
        return sum;
    }

    private static void print(String bench, String metric, String unit, double[] samples) {
        StringBuilder line = new StringBuilder(bench + "|" + metric + "|" + unit);
        for (double sample : samples) {
            line.append('|').append(sample);
        }
        System.out.println(line);
    }
}
