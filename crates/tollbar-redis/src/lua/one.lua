-- One request under one policy: most checks, so it does nothing that this does not need.

local kind, cost = struct.unpack('>Bd', blob)
local outcome, remaining, reset_at, retry_after, next, fresh_at, _, height, delay =
  steps[kind](redis.call('GET', KEYS[1]), cost, 10)
if next then
  save(KEYS[1], next, fresh_at)
end
return struct.pack('>BdddBd', outcome, remaining, reset_at, retry_after, height or 0, delay or 0)
