"""redlock-py in a process of its own, driven line by line; the protocol is told in tests/src/peers.rs."""

import math
import sys
import time

from redlock import Redlock

DELAY = 0.005
redlock = Redlock(sys.argv[1:], retry_delay=DELAY)
held = None


def acquire(name, lease, wait):
    redlock.retry_count = 1 + math.ceil(int(wait) / 1000 / DELAY)
    return redlock.lock(name, int(lease))


def answer(verb, *words):
    global held
    if verb == "acquire":
        lock = acquire(*words)
        held = lock or held
        return "acquired" if lock else "refused"
    if verb == "release":
        # It tells nobody whether there was anything to release.
        redlock.unlock(held)
        return "unknown"
    if verb == "increment":
        name, lease, times, file = words
        for _ in range(int(times)):
            lock = acquire(name, lease, 60_000)
            with open(file) as counter:
                number = int(counter.read())
            with open(file, "w") as counter:
                counter.write(str(number + 1))
            redlock.unlock(lock)
            time.sleep(0.001)
        return "done"
    return "error no such request"


for server in redlock.servers:
    server.ping()
print("> ready", flush=True)
for line in sys.stdin:
    print(">", answer(*line.split()), flush=True)
