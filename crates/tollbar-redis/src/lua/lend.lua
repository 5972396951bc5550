-- Lends tokens of one counter: charges as many as are asked for and there are, for the caller to spend later. The
-- twin of counter/value/loan.rs.
--
-- The blob: the kind of its policy (1 byte), how many tokens, for how long at most, by how much a bucket is cut, and
-- the numbers of the policy.

local kind, tokens, term, cut, at = struct.unpack('>Bddd', blob)
local step, raise_cut = steps[kind], cuts[kind]
local state = redis.call('GET', KEYS[1])
local base = raise_cut and raise_cut(state, cut) or state
local _, remaining = step(base, 0, at)
local lent, life, outcome, retry_after = math.min(tokens, remaining), 0, ALLOW, 0
if lent > 0 then
  local _, _, _, _, next, fresh_at, stamp = step(base, lent, at)
  save(KEYS[1], next, fresh_at)
  state, base = next, next
  -- The stamp of a window is its end. What was charged in it is not spent in the next.
  life = raise_cut and term or math.min(term, stamp - now)
end
if lent < tokens then
  -- When there is one more to lend.
  outcome, _, _, retry_after = step(base, 1, at)
end
local _, left, reset_at = step(state, 0, at)
return struct.pack('>BdddBddd', outcome, left, reset_at, retry_after, 0, 0, lent, life)
