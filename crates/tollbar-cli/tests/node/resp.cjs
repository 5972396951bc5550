// What ioredis gets from the daemon: the arguments are its port, and the token or nothing. TOLLBAR_NPM is where the
// package is installed.

const assert = require("node:assert");
const path = require("node:path");
const { createRequire } = require("node:module");
const installed = createRequire(path.join(process.env.TOLLBAR_NPM, "package.json"));
const { Redis } = installed("ioredis");

const [port, password] = process.argv.slice(2);

async function main() {
  const client = new Redis({ port, password, lazyConnect: true, retryStrategy: null });
  await client.connect();
  assert.strictEqual(await client.ping(), "PONG");
  const throttle = ["CL.THROTTLE", "js", "1", "1", "3600"];
  assert.deepStrictEqual(await client.call(...throttle), [0, 2, 1, -1, 3600]);

  // A transaction: ioredis sends MULTI and EXEC around it.
  const answers = await client.multi().call(...throttle).call(...throttle).ping().exec();
  assert.deepStrictEqual(answers.map(([error]) => error), [null, null, null]);
  assert.deepStrictEqual(answers[0][1].slice(0, 3), [0, 2, 0]);
  assert.strictEqual(answers[1][1][0], 1);
  assert.strictEqual(answers[2][1], "PONG");
  assert.deepStrictEqual(await client.multi().exec(), []);
  await assert.rejects(client.multi().ping().get("a").exec(), /EXECABORT/);
  await client.multi({ pipeline: false });
  assert.strictEqual(await client.ping(), "QUEUED");
  assert.strictEqual(await client.discard(), "OK");
  await assert.rejects(client.exec(), /EXEC without MULTI/);
  await assert.rejects(client.watch("a"), /WATCH is not served/);

  const denied = await client.call(...throttle, "WITHID");
  assert.strictEqual(denied[0], 1);
  const why = JSON.parse(await client.call("TB.EXPLAIN", denied[5]));
  assert.match(why.why, /^`CL.THROTTLE` allows 1\/3600s/);

  const asMap = (pairs) =>
    Object.fromEntries(pairs.flatMap((name, at) => (at % 2 ? [] : [[name, pairs[at + 1]]])));
  const subject = ["WITH", "user", "js"];
  const reserved = await client.call("TB.RESERVE", "GET", "/v1/a", "COST", "4", ...subject);
  const settled = asMap(await client.call("TB.COMMIT", asMap(reserved).receipt, "COST", "1"));
  assert.strictEqual(asMap(settled.charges[0]).refunded, 3);
  const left = asMap(await client.call("TB.PEEK", "GET", "/v1/a", ...subject));
  assert.strictEqual(left.remaining, 9);
  await client.quit();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
