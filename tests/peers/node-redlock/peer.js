// node-redlock with ioredis in a process of its own, driven line by line; the protocol is told in tests/src/peers.rs.
// The first argument says which of the two major versions in use; the others are the servers' URLs.
"use strict";

const fs = require("fs");
const readline = require("readline");
const { Redis } = require("ioredis");

const [version, ...urls] = process.argv.slice(2);
const DELAY = 5;
// What is lost stays lost: only an acquire is worth another try.
const settings = { retryCount: 0, retryDelay: DELAY, retryJitter: 2 };

// A server that is down must say so, and not keep the others waiting.
const clients = urls.map((url) => new Redis(url, { maxRetriesPerRequest: 0 }));
clients.forEach((client) => client.on("error", () => {}));
const redlock = version === "4"
  ? new (require("redlock-4"))(clients, settings)
  : new (require("redlock").default)(clients, settings);

async function acquire(name, lease, wait) {
  const options = { ...settings, retryCount: Math.ceil(wait / DELAY) };
  if (version === "4") {
    return redlock.acquireWithOptions(name, lease, options);
  }
  if (urls.length === 1) {
    return redlock.acquire([name], lease, options);
  }
  // Between its own tries, version 5 keeps the servers that it got, and takes itself for another holder there: with two of
  // three it shuts out everybody, itself included, until the lease ends. An acquire of one try gives them back.
  for (let tries = 0; ; tries++) {
    try {
      return await redlock.acquire([name], lease, settings);
    } catch (error) {
      if (tries >= options.retryCount) throw error;
      await new Promise((resolve) => setTimeout(resolve, DELAY));
    }
  }
}

let held;
let signal;
const requests = {
  // Version 5 only: holds the lock, which the library extends, until the process ends.
  async using(name, lease) {
    return new Promise((resolve) => {
      redlock.using([name], Number(lease), settings, (given) => {
        signal = given;
        resolve("acquired");
        return new Promise(() => {});
      });
    });
  },
  async aborted() {
    return signal.aborted ? `lost ${signal.error.message}` : "held";
  },
  async acquire(name, lease, wait) {
    try {
      held = await acquire(name, Number(lease), Number(wait));
    } catch (error) {
      return `refused ${error.message}`;
    }
    // Which name and lease an `extend` is about.
    held.lease = Number(lease);
    return "acquired";
  },
  async extend() {
    const lease = held.lease;
    try {
      held = await held.extend(lease);
    } catch (error) {
      return `lost ${error.message}`;
    }
    held.lease = lease;
    return "extended";
  },
  async release() {
    try {
      await (version === "4" ? held.unlock() : held.release());
    } catch (error) {
      return `lost ${error.message}`;
    }
    return "released";
  },
  async increment(name, lease, times, file) {
    for (let i = 0; i < Number(times); i++) {
      const lock = await acquire(name, Number(lease), 60_000);
      const number = Number(await fs.promises.readFile(file, "utf8"));
      await fs.promises.writeFile(file, String(number + 1));
      await (version === "4" ? lock.unlock() : lock.release());
      await new Promise((resolve) => setTimeout(resolve, 1));
    }
    return "done";
  },
};

async function main() {
  await Promise.all(clients.map((client) => client.ping()));
  console.log("> ready");
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [verb, ...words] = line.split(" ");
    const answer = await requests[verb](...words).catch((error) => `error ${error.message}`);
    console.log(`> ${answer}`);
  }
  process.exit(0);
}

main();
