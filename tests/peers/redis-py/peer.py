"""redis-py's `Lock` in a process of its own, driven line by line; the protocol is told in tests/src/peers.rs."""

import sys
import time

import redis
from redis.exceptions import LockError

client = redis.Redis.from_url(sys.argv[1])
held = None


def acquire(name, lease, wait):
    # Without a timeout, which is the default, a lock has no end.
    timeout = int(lease) / 1000 or None
    lock = client.lock(name, timeout=timeout, sleep=0.005, blocking_timeout=int(wait) / 1000)
    return lock if lock.acquire() else None


def answer(verb, *words):
    global held
    if verb == "acquire":
        lock = acquire(*words)
        held = lock or held
        return "acquired" if lock else "refused"
    if verb == "extend":
        try:
            held.reacquire()
        except LockError as error:
            return f"lost {error}"
        return "extended"
    if verb == "release":
        try:
            held.release()
        except LockError as error:
            return f"lost {error}"
        return "released"
    if verb == "increment":
        name, lease, times, file = words
        for _ in range(int(times)):
            lock = acquire(name, lease, 60_000)
            with open(file) as counter:
                number = int(counter.read())
            with open(file, "w") as counter:
                counter.write(str(number + 1))
            lock.release()
            time.sleep(0.001)
        return "done"
    return "error no such request"


client.ping()
print("> ready", flush=True)
for line in sys.stdin:
    print(">", answer(*line.split()), flush=True)
