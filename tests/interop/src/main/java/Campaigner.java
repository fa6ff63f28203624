import java.io.BufferedReader;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RReadWriteLock;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * A worker of a campaign that is Redisson: threads that go in and out, and write down what they saw in the spelling of the
 * campaign's history. It asks for a time only and with fixed leases, so that everything of its ends by itself.
 *
 * <p>It says when it was granted something for the first time: a JVM takes seconds until then. Told to drain, it begins nothing more
 * and says when all is done. It ends when stdin does.
 */
public final class Campaigner {
    private final FileOutputStream history;
    private final RedissonClient client;
    private final String process;
    private final String kind;
    private final int locks;
    private final long lease;
    /** How far the history's clock is ahead of {@link System#nanoTime}. */
    private final long ahead;

    private final AtomicLong operations = new AtomicLong();
    private final AtomicBoolean worked = new AtomicBoolean();
    private volatile boolean drains;

    public static void main(String[] arguments) throws Exception {
        new Campaigner(arguments).work(Integer.parseInt(arguments[4]));
    }

    private Campaigner(String[] arguments) throws IOException {
        history = new FileOutputStream(arguments[1] + "/" + arguments[2] + ".history", true);
        process = arguments[2];
        locks = Integer.parseInt(arguments[5]);
        lease = Long.parseLong(arguments[6]);
        kind = arguments[9];
        ahead = Long.parseLong(arguments[10]);
        record(now(), 0, 0, "-", "started");
        client = connect(arguments[0], Integer.parseInt(arguments[7]));
    }

    private RedissonClient connect(String url, int patience) {
        Config config = new Config();
        config.useSingleServer()
                .setAddress(url)
                .setTimeout(patience)
                .setConnectTimeout(patience)
                // A counted request that is sent twice counts twice.
                .setRetryAttempts(kind.equals("semaphore") ? 0 : 2)
                .setConnectionMinimumIdleSize(4)
                .setConnectionPoolSize(16);
        while (true) {
            try {
                return Redisson.create(config);
            } catch (RuntimeException down) {
                // It may be dead at the moment.
            }
        }
    }

    private void work(int tasks) throws Exception {
        List<Thread> threads = new ArrayList<>();
        for (int task = 1; task <= tasks; task++) {
            int number = task;
            Thread thread = new Thread(() -> comeAndGo(number));
            // What nobody expected ends the process, and it never says that it has finished.
            thread.setUncaughtExceptionHandler((dead, error) -> {
                error.printStackTrace();
                Runtime.getRuntime().halt(1);
            });
            thread.start();
            threads.add(thread);
        }
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        if (requests.readLine() != null) {
            drains = true;
            for (Thread thread : threads) {
                thread.join();
            }
            record(now(), 0, 0, "-", "finished");
            System.out.println("drained");
        }
        if (requests.readLine() != null) {
            System.out.println("probed");
        }
        while (requests.readLine() != null) {
            // The campaign ends it.
        }
        Runtime.getRuntime().halt(0);
    }

    private void comeAndGo(int task) {
        ThreadLocalRandom random = ThreadLocalRandom.current();
        try {
            while (!drains) {
                Thing thing =
                        switch (kind) {
                            case "permits" -> new Permit();
                            case "semaphore" -> new Counted();
                            default -> side(random);
                        };
                Visit visit = new Visit(task, thing);
                if (visit.ask()) {
                    Thread.sleep(random.nextLong(15));
                    visit.giveBack();
                }
                Thread.sleep(random.nextLong(10));
            }
        } catch (InterruptedException | IOException ends) {
            throw new IllegalStateException(ends);
        }
    }

    private Side side(ThreadLocalRandom random) {
        boolean reads = random.nextInt(100) < Integer.parseInt(kind.substring(kind.indexOf(':') + 1));
        String name = "lock:" + random.nextInt(locks);
        RReadWriteLock lock = client.getReadWriteLock(name);
        return new Side(name, reads, reads ? lock.readLock() : lock.writeLock());
    }

    /** What is taken and given back. */
    private interface Thing {
        String name();

        String invoked();

        /** Who has it from now on, or {@code null}. */
        String take() throws InterruptedException;

        /** Whether it ends by itself when its lease is over. */
        default boolean hasLease() {
            return true;
        }

        /** Whether it was had until now. */
        boolean giveBack();
    }

    private final class Permit implements Thing {
        private final RPermitExpirableSemaphore pool = client.getPermitExpirableSemaphore(name());
        private String id;

        @Override
        public String name() {
            return "pool";
        }

        @Override
        public String invoked() {
            return "- shared";
        }

        @Override
        public String take() throws InterruptedException {
            id = pool.tryAcquire(PATIENCE, lease, TimeUnit.MILLISECONDS);
            return id;
        }

        @Override
        public boolean giveBack() {
            return pool.tryRelease(id);
        }
    }

    private final class Counted implements Thing {
        private final RSemaphore pool = client.getSemaphore(name());

        @Override
        public String name() {
            return "pool";
        }

        @Override
        public String invoked() {
            return "- shared";
        }

        @Override
        public String take() throws InterruptedException {
            return pool.tryAcquire(1, Duration.ofMillis(PATIENCE)) ? "-" : null;
        }

        @Override
        public boolean hasLease() {
            return false;
        }

        @Override
        public boolean giveBack() {
            pool.release();
            return true;
        }
    }

    private final class Side implements Thing {
        private final String name;
        private final boolean reads;
        private final RLock lock;
        private final String owner = client.getId() + ":" + Thread.currentThread().getId();

        Side(String name, boolean reads, RLock lock) {
            this.name = name;
            this.reads = reads;
            this.lock = lock;
        }

        @Override
        public String name() {
            return name;
        }

        @Override
        public String invoked() {
            return reads ? owner + " shared" : owner;
        }

        @Override
        public String take() throws InterruptedException {
            return lock.tryLock(PATIENCE, lease, TimeUnit.MILLISECONDS) ? owner : null;
        }

        @Override
        public boolean giveBack() {
            try {
                lock.unlock();
                return true;
            } catch (IllegalMonitorStateException lost) {
                return false;
            }
        }
    }

    /** One thing asked for, and given back. */
    private final class Visit {
        private final int task;
        private final long number = operations.incrementAndGet();
        private final Thing thing;

        Visit(int task, Thing thing) {
            this.task = task;
            this.thing = thing;
        }

        boolean ask() throws InterruptedException, IOException {
            long asked = now();
            long nanos = TimeUnit.MILLISECONDS.toNanos(lease);
            record(asked, "invoked try false " + nanos + " - " + thing.invoked());
            String owner;
            try {
                owner = thing.take();
            } catch (RuntimeException error) {
                record(now(), "failed maybe-executed " + error.getClass().getSimpleName());
                return false;
            }
            if (owner == null) {
                record(now(), "not-granted");
                return false;
            }
            // The server began to count after it was asked, and the rounding is its own.
            long until = thing.hasLease() ? asked + nanos - nanos / 100 : Long.MAX_VALUE;
            record(now(), "granted " + owner + " " + until);
            if (worked.compareAndSet(false, true)) {
                System.out.println("at work");
            }
            return true;
        }

        void giveBack() throws IOException {
            record(now(), "releasing");
            String result;
            try {
                result = thing.giveBack() ? "released" : "already-lost";
            } catch (RuntimeException error) {
                result = "unconfirmed " + error.getClass().getSimpleName();
            }
            record(now(), result);
        }

        private void record(long at, String what) throws IOException {
            Campaigner.this.record(at, task, number, thing.name(), what);
        }
    }

    private long now() {
        return System.nanoTime() + ahead;
    }

    /** A line, written whole: a killed process leaves no part of one before others. */
    private synchronized void record(long at, int task, long operation, String name, String what) throws IOException {
        String line = at + " " + process + " " + task + " " + operation + " " + name + " " + what + "\n";
        history.write(line.getBytes(StandardCharsets.UTF_8));
    }

    /** How long is waited, in milliseconds. */
    private static final long PATIENCE = 400;
}
