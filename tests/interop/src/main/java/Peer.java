import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.net.URLDecoder;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.redisson.Redisson;
import org.redisson.api.RCountDownLatch;
import org.redisson.api.RLock;
import org.redisson.api.RObject;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RReadWriteLock;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.BaseMasterSlaveServersConfig;
import org.redisson.config.ClusterServersConfig;
import org.redisson.config.Config;
import org.redisson.config.ReadMode;
import org.redisson.config.SentinelServersConfig;
import org.redisson.config.SingleServerConfig;
import org.redisson.config.SubscriptionMode;

/**
 * Redisson, driven line by line by tests in another language. Owns the protocol; knows no test.
 *
 * <pre>
 * stdin    id client thread verb argument...
 * stdout   id began ended ok result
 *          id began ended error class message
 * </pre>
 *
 * Every named thread of every named client is a thread of its own, for a thread is what owns a lock; it does what it is
 * told in order, and answers when done. Words are percent-encoded. Times are nanoseconds of CLOCK_MONOTONIC, which is what
 * {@link System#nanoTime} reads on Linux; durations are milliseconds. The process ends when stdin closes.
 */
public final class Peer {
    private static final PrintStream OUT = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    private static final Map<String, RedissonClient> CLIENTS = new ConcurrentHashMap<>();
    private static final Map<String, Worker> WORKERS = new ConcurrentHashMap<>();

    public static void main(String[] arguments) throws IOException {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            Request request = Request.parse(line);
            if (request.verb.equals("crash")) {
                Runtime.getRuntime().halt(1);
            }
            WORKERS.computeIfAbsent(request.client + "/" + request.thread, Worker::begin).requests.add(request);
        }
        // Whatever the threads wait for: nobody will hear of it.
        Runtime.getRuntime().halt(0);
    }

    private record Request(String id, String client, String thread, String verb, String[] arguments) {
        static Request parse(String line) {
            String[] words = line.split(" ");
            String[] arguments = new String[words.length - 4];
            for (int i = 0; i < arguments.length; i++) {
                arguments[i] = URLDecoder.decode(words[i + 4], StandardCharsets.UTF_8);
            }
            return new Request(words[0], words[1], words[2], words[3], arguments);
        }

        boolean has(int argument) {
            return argument < arguments.length;
        }

        long number(int argument) {
            return Long.parseLong(arguments[argument]);
        }
    }

    /** One thread, and the lock objects that it has in hand, as a method would have them in local variables. */
    private static final class Worker extends Thread {
        final BlockingQueue<Request> requests = new LinkedBlockingQueue<>();
        private final Map<String, RLock> locks = new HashMap<>();

        static Worker begin(String name) {
            Worker worker = new Worker();
            worker.setName(name);
            worker.setDaemon(true);
            worker.start();
            return worker;
        }

        @Override
        public void run() {
            while (true) {
                try {
                    answer(requests.take());
                } catch (InterruptedException interrupted) {
                    return;
                }
            }
        }

        private void answer(Request request) {
            long began = System.nanoTime();
            String result;
            try {
                result = "ok " + encode(String.valueOf(perform(request)));
            } catch (Exception error) {
                String because = error.getCause() == null ? "" : ", because of " + error.getCause();
                result = "error " + error.getClass().getName() + " " + encode(error.getMessage() + because);
            }
            OUT.println(request.id + " " + began + " " + System.nanoTime() + " " + result);
        }

        private Object perform(Request request) throws Exception {
            switch (request.verb) {
                case "open":
                    Map<String, String> settings = new HashMap<>();
                    for (int i = 2; request.has(i); i += 2) {
                        settings.put(request.arguments[i], request.arguments[i + 1]);
                    }
                    RedissonClient opened = open(request.arguments[0], request.number(1), settings);
                    CLIENTS.put(request.client, opened);
                    return opened.getId();
                case "close":
                    CLIENTS.remove(request.client).shutdown();
                    return "closed";
                case "thread":
                    return Thread.currentThread().getId();
                case "interrupt":
                    WORKERS.get(request.client + "/" + request.arguments[0]).interrupt();
                    return "interrupted";
                case "sleeps":
                    // Whoever waits for an answer of the server is WAITING.
                    Worker other = WORKERS.get(request.client + "/" + request.arguments[0]);
                    return other.getState() == Thread.State.TIMED_WAITING;
                default:
                    RedissonClient client = CLIENTS.get(request.client);
                    String name = request.arguments[0];
                    String rest = name.substring(name.indexOf('@') + 1);
                    switch (name.substring(0, name.length() - rest.length())) {
                        case "semaphore@":
                            return call(request, client.getSemaphore(rest));
                        case "permits@":
                            return call(request, client.getPermitExpirableSemaphore(rest));
                        case "latch@":
                            return call(request, client.getCountDownLatch(rest));
                        default:
                            break;
                    }
                    RLock lock = locks.get(request.arguments[0]);
                    if (lock == null) {
                        lock = lockOf(client, request.arguments[0]);
                        locks.put(request.arguments[0], lock);
                    }
                    return perform(request, client, lock);
            }
        }

        private static Object perform(Request request, RedissonClient client, RLock lock) throws Exception {
            switch (request.verb) {
                case "lock":
                    if (request.has(1)) {
                        lock.lock(request.number(1), TimeUnit.MILLISECONDS);
                    } else {
                        lock.lock();
                    }
                    return "locked";
                case "tryLock":
                    if (request.has(2)) {
                        return lock.tryLock(request.number(1), request.number(2), TimeUnit.MILLISECONDS);
                    }
                    return request.has(1) ? lock.tryLock(request.number(1), TimeUnit.MILLISECONDS) : lock.tryLock();
                case "unlock":
                    lock.unlock();
                    return "unlocked";
                case "forceUnlock":
                    return lock.forceUnlock();
                case "delete":
                    return ((RObject) lock).delete();
                case "isLocked":
                    return lock.isLocked();
                case "getHoldCount":
                    return lock.getHoldCount();
                case "isHeldByThread":
                    return lock.isHeldByThread(request.number(1));
                case "remainTimeToLive":
                    return lock.remainTimeToLive();
                case "holders":
                    return holders(client, lock.getName());
                case "increment":
                    for (long left = request.number(1); left > 0; left--) {
                        increment(lock, Path.of(request.arguments[2]));
                    }
                    return "done";
                case "waits":
                    return waits(lock, request.number(1), Path.of(request.arguments[2]));
                case "visit":
                    return visit(client.getReadWriteLock(lock.getName()), request);
                case "lockAndGetToken":
                case "getToken":
                    // Of a type that versions before 3.21 do not have.
                    return lock.getClass().getMethod(request.verb).invoke(lock);
                default:
                    throw new IllegalArgumentException("no such verb: " + request.verb);
            }
        }
    }

    /** The first argument is the name. */
    private static Object call(Request request, RSemaphore semaphore) throws Exception {
        int number = request.has(1) ? Math.toIntExact(request.number(1)) : 1;
        switch (request.verb) {
            case "acquire":
                semaphore.acquire(number);
                return "acquired";
            case "tryAcquire":
                return request.has(2)
                        ? semaphore.tryAcquire(number, Duration.ofMillis(request.number(2)))
                        : semaphore.tryAcquire(number);
            case "release":
                semaphore.release(number);
                return "released";
            case "trySetPermits":
                return semaphore.trySetPermits(number);
            case "addPermits":
                semaphore.addPermits(number);
                return "added";
            case "drainPermits":
                return semaphore.drainPermits();
            case "availablePermits":
                return semaphore.availablePermits();
            case "delete":
                return semaphore.delete();
            case "visit":
                StringBuilder visits = new StringBuilder();
                for (long end = endOf(request); System.nanoTime() < end; ) {
                    int permits = ThreadLocalRandom.current().nextInt(1, 4);
                    semaphore.acquire(permits);
                    try {
                        stay(permits, visits);
                    } finally {
                        semaphore.release(permits);
                    }
                }
                return visits;
            default:
                throw new IllegalArgumentException("no such verb: " + request.verb);
        }
    }

    /** The first argument is the name. */
    private static Object call(Request request, RPermitExpirableSemaphore semaphore) throws Exception {
        switch (request.verb) {
            case "acquire":
                return request.has(1)
                        ? semaphore.acquire(request.number(1), TimeUnit.MILLISECONDS)
                        : semaphore.acquire();
            case "acquireMany":
                return String.join(" ", semaphore.acquire(Math.toIntExact(request.number(1))));
            case "tryAcquireMany":
                return String.join(" ", semaphore.tryAcquire(Math.toIntExact(request.number(1))));
            case "tryAcquire":
                if (request.has(2)) {
                    return semaphore.tryAcquire(request.number(1), request.number(2), TimeUnit.MILLISECONDS);
                }
                return request.has(1)
                        ? semaphore.tryAcquire(request.number(1), TimeUnit.MILLISECONDS)
                        : semaphore.tryAcquire();
            case "release":
                semaphore.release(request.arguments[1]);
                return "released";
            case "tryRelease":
                String[] ids = Arrays.copyOfRange(request.arguments, 1, request.arguments.length);
                return ids.length == 1 ? semaphore.tryRelease(ids[0]) : semaphore.tryRelease(Arrays.asList(ids));
            case "trySetPermits":
                return semaphore.trySetPermits(Math.toIntExact(request.number(1)));
            case "setPermits":
                semaphore.setPermits(Math.toIntExact(request.number(1)));
                return "set";
            case "addPermits":
                semaphore.addPermits(Math.toIntExact(request.number(1)));
                return "added";
            case "availablePermits":
                return semaphore.availablePermits();
            case "acquiredPermits":
                return semaphore.acquiredPermits();
            case "getPermits":
                return semaphore.getPermits();
            case "getLeaseTime":
                return semaphore.getLeaseTime(request.arguments[1]);
            case "updateLeaseTime":
                return semaphore.updateLeaseTime(request.arguments[1], request.number(2), TimeUnit.MILLISECONDS);
            case "delete":
                return semaphore.delete();
            case "visit":
                StringBuilder visits = new StringBuilder();
                for (long end = endOf(request); System.nanoTime() < end; ) {
                    String id = semaphore.acquire();
                    try {
                        stay(1, visits);
                    } finally {
                        semaphore.release(id);
                    }
                }
                return visits;
            default:
                throw new IllegalArgumentException("no such verb: " + request.verb);
        }
    }

    /** The first argument is the name. */
    private static Object call(Request request, RCountDownLatch latch) throws Exception {
        switch (request.verb) {
            case "trySetCount":
                return latch.trySetCount(request.number(1));
            case "countDown":
                latch.countDown();
                return "counted";
            case "getCount":
                return latch.getCount();
            case "await":
                if (request.has(1)) {
                    return latch.await(request.number(1), TimeUnit.MILLISECONDS);
                }
                latch.await();
                return "open";
            case "delete":
                return latch.delete();
            default:
                throw new IllegalArgumentException("no such verb: " + request.verb);
        }
    }

    private static long endOf(Request request) {
        return System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(request.number(1));
    }

    /** Has so many permits for a moment, and says when: a line {@code permits began ended}. */
    private static void stay(int permits, StringBuilder visits) throws InterruptedException {
        long began = System.nanoTime();
        Thread.sleep(ThreadLocalRandom.current().nextInt(3));
        visits.append(permits).append(' ').append(began).append(' ').append(System.nanoTime()).append('\n');
    }

    /** Before a lock's name may stand its kind. */
    private static RLock lockOf(RedissonClient client, String name) throws ReflectiveOperationException {
        int start = name.indexOf('@') + 1;
        String rest = name.substring(start);
        switch (name.substring(0, start)) {
            case "read@":
                return client.getReadWriteLock(rest).readLock();
            case "write@":
                return client.getReadWriteLock(rest).writeLock();
            case "fenced@":
                return (RLock) RedissonClient.class.getMethod("getFencedLock", String.class).invoke(client, rest);
            case "spin@":
                return client.getSpinLock(rest);
            case "fair@":
                return client.getFairLock(rest);
            default:
                return client.getLock(name);
        }
    }

    /**
     * A topology is a scheme. Settings that are no defaults: the password of the Sentinels, the servers of subscriptions, and
     * a prefix, which stands for a mapper of names and a codec.
     */
    private static RedissonClient open(String url, long watchdogMillis, Map<String, String> settings) throws Exception {
        Config config = new Config();
        config.setLockWatchdogTimeout(watchdogMillis);
        Address address = Address.parse(url);
        switch (address.scheme) {
            case "redis":
                SingleServerConfig server = config.useSingleServer().setAddress(url);
                if (settings.containsKey("prefix")) {
                    config.setCodec(StringCodec.INSTANCE);
                    mapNames(server, settings.get("prefix"));
                }
                break;
            case "redis+sentinel":
                SentinelServersConfig sentinels = config.useSentinelServers()
                        .setMasterName(address.path)
                        .addSentinelAddress(address.hosts)
                        .setSentinelPassword(settings.get("sentinelPassword"))
                        .setScanInterval(SCAN_MILLIS);
                if ("replicas".equals(settings.get("subscriptions"))) {
                    sentinels.setSubscriptionMode(SubscriptionMode.SLAVE);
                }
                behave(sentinels, address);
                break;
            case "redis+cluster":
                ClusterServersConfig nodes = config.useClusterServers()
                        .addNodeAddress(address.hosts)
                        .setScanInterval(SCAN_MILLIS);
                behave(nodes, address);
                break;
            default:
                throw new IllegalArgumentException("no such topology: " + address.scheme);
        }
        return Redisson.create(config);
    }

    /** What several servers have in common; on a machine with many of them. */
    private static void behave(BaseMasterSlaveServersConfig<?> servers, Address address) {
        servers.setUsername(address.user);
        servers.setPassword(address.password);
        // The default asks replicas, which may not have heard yet.
        servers.setReadMode(ReadMode.MASTER);
        servers.setConnectTimeout(1_000);
        servers.setMasterConnectionMinimumIdleSize(2);
        servers.setSlaveConnectionMinimumIdleSize(1);
    }

    /** How often to ask who is the primary, or who owns which slots. */
    private static final int SCAN_MILLIS = 250;

    /** {@code scheme://[[user]:password@]host:port[,host:port]...[/path]} */
    private record Address(String scheme, String user, String password, String[] hosts, String path) {
        static Address parse(String url) {
            String[] schemeAndRest = url.split("://", 2);
            String rest = schemeAndRest[1];
            String user = null;
            String password = null;
            int at = rest.lastIndexOf('@');
            if (at >= 0) {
                String[] userinfo = rest.substring(0, at).split(":", 2);
                user = userinfo[0].isEmpty() ? null : URLDecoder.decode(userinfo[0], StandardCharsets.UTF_8);
                password = URLDecoder.decode(userinfo[1], StandardCharsets.UTF_8);
                rest = rest.substring(at + 1);
            }
            String[] hostsAndPath = rest.split("/", 2);
            String[] hosts = hostsAndPath[0].split(",");
            for (int i = 0; i < hosts.length; i++) {
                hosts[i] = "redis://" + hosts[i];
            }
            return new Address(schemeAndRest[0], user, password, hosts, hostsAndPath.length > 1 ? hostsAndPath[1] : null);
        }
    }

    /** Puts a prefix before every name. By reflection, for the mapper's package is another one since version 4. */
    private static void mapNames(SingleServerConfig server, String prefix) throws ReflectiveOperationException {
        InvocationHandler mapper = (proxy, method, names) ->
                method.getName().equals("map") ? prefix + names[0] : ((String) names[0]).substring(prefix.length());
        for (Method setter : server.getClass().getMethods()) {
            if (setter.getName().equals("setNameMapper")) {
                Class<?> type = setter.getParameterTypes()[0];
                setter.invoke(server, Proxy.newProxyInstance(type.getClassLoader(), new Class<?>[] {type}, mapper));
            }
        }
    }

    /** Who holds a lock how often, whichever process it is: Redisson's locks answer only for their own. */
    private static String holders(RedissonClient client, String lock) {
        Map<String, String> holders = client.<String, String>getMap(lock, StringCodec.INSTANCE).readAllMap();
        return new TreeMap<>(holders).entrySet().stream()
                .map(holder -> holder.getKey() + " " + holder.getValue())
                .collect(Collectors.joining("\n"));
    }

    /** Read, add one, write: three steps on purpose. */
    private static void increment(RLock lock, Path file) throws IOException {
        lock.lock();
        try {
            addOne(file);
        } finally {
            lock.unlock();
        }
    }

    /** So many increments, and when the lock was asked for and had in each. */
    private static String waits(RLock lock, long times, Path file) throws IOException {
        StringBuilder waits = new StringBuilder();
        for (long left = times; left > 0; left--) {
            waits.append(System.nanoTime()).append(' ');
            lock.lock();
            try {
                waits.append(System.nanoTime()).append('\n');
                addOne(file);
            } finally {
                lock.unlock();
            }
        }
        return waits.toString().trim();
    }

    private static void addOne(Path file) throws IOException {
        long number = Long.parseLong(Files.readString(file));
        Files.writeString(file, Long.toString(number + 1));
    }

    /**
     * Goes in and out for a while: so many times reading, then once writing, which adds one to a file. Says when each visit
     * began and ended, a line {@code r began ended} or {@code w began ended}.
     */
    private static String visit(RReadWriteLock lock, Request request) throws Exception {
        StringBuilder visits = new StringBuilder();
        long reads = request.number(1);
        long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(request.number(2));
        for (long visit = 0; System.nanoTime() < end; visit++) {
            boolean writes = visit % (reads + 1) == reads;
            RLock side = writes ? lock.writeLock() : lock.readLock();
            side.lock();
            try {
                long began = System.nanoTime();
                if (writes) {
                    addOne(Path.of(request.arguments[3]));
                } else {
                    Thread.sleep(1);
                }
                visits.append(writes ? "w " : "r ").append(began).append(' ').append(System.nanoTime()).append('\n');
            } finally {
                side.unlock();
            }
        }
        return visits.toString();
    }

    private static String encode(String text) {
        return URLEncoder.encode(text, StandardCharsets.UTF_8);
    }
}
