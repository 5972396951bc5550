// Reads headers with npm's ratelimit-header-parser: a list of them on stdin as JSON, what they say on stdout.
// `reset` is in seconds from now. TOLLBAR_NPM is where the package is installed.
const fs = require("node:fs");
const path = require("node:path");
const { createRequire } = require("node:module");

const installed = createRequire(path.join(process.env.TOLLBAR_NPM, "package.json"));
const { parseRateLimit } = installed("ratelimit-header-parser");

const told = JSON.parse(fs.readFileSync(0, "utf8")).map((headers) => {
  const { limit, used, remaining, reset } = parseRateLimit(headers);
  return { limit, used, remaining, reset: (reset.getTime() - Date.now()) / 1000 };
});
process.stdout.write(JSON.stringify(told));
