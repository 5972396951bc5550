-- What every script begins with: the instant it decides at, and how a state is kept.
--
-- KEYS    the counters, then the marks
-- ARGV[1] what is asked, packed by wire.rs: doubles hold every integer below 2^53 exactly
-- ARGV[2] only in tests: another clock, and for how much longer than needed states are kept

local blob = ARGV[1]
local now, grace_ms

if ARGV[2] then
  now, grace_ms = struct.unpack('>dd', ARGV[2])
else
  local time = redis.call('TIME')
  now, grace_ms = time[1] * 1000000 + time[2], 0
end
-- Timestamp::MAX: a clock that shows more stands still.
if now > 3377699720527871 then
  now = 3377699720527871
end

-- 2^53 - 1. No state holds a larger number; one that does was not written here.
local NUMBER_MAX = 9007199254740991

-- When a state is fresh that time does not make so.
local FOR_EVER = math.huge

-- When a state is fresh that takes the place of another, and is so at the same time as that: its key
-- expires when it would have. Only in scripts that set `keeps` to it: those that look at a counter once.
local KEEP = -1
local keeps

local ALLOW, DENY, BUSY, NEVER = 0, 1, 2, 3

-- The algorithms of this script by their number in terms.rs. Each answers
--   outcome, remaining, reset_at, retry_after, next state if it was charged, when that is fresh, stamp,
--   the step of a warm-up, the delay of a queue, more of the stamp where it takes two numbers
-- to (state or false, cost, where its numbers begin in the blob).
local steps = {}

-- The same for charges that may be given back, for giving back, and for loans. Only the scripts that need them
-- make tables of them: what is not needed is not even defined.
local holds, refunds, overdraws, resets, renews, cuts

-- Until it is as good as absent, and a millisecond more: Redis may have read its clock before us.
-- Numbers this large are whole, and Redis prints them with 17 digits, so none becomes 1e+15.
local function save(key, state, fresh_at)
  if state == '' then
    return redis.call('DEL', key)
  elseif fresh_at == FOR_EVER then
    return redis.call('SET', key, state)
  elseif fresh_at == KEEP then
    return redis.call('SET', key, state, 'KEEPTTL')
  end
  local ttl_ms = math.ceil((fresh_at - now) / 1000)
  if ttl_ms < 0 then
    ttl_ms = 0
  end
  redis.call('SET', key, state, 'PX', ttl_ms + 1 + grace_ms)
end

-- A window whose charges may be given back has the instant of its first reservation at the end of its
-- state (7 bytes), and the stamps of reservations have it added, and this. A reset deletes both, so a
-- charge from before it is not taken from what was charged since: memory/settling.rs has the reason.
local RESERVED = 36028797018963968

local function pack_first(first)
  return first and struct.pack('>I7', first) or ''
end

-- The window or sub-window that `stamp_high + stamp_low` names, which may be none. Without RESERVED it
-- is named as it is.
local function window_named(first, stamp_high, stamp_low)
  if stamp_high < RESERVED then
    return stamp_high + stamp_low
  elseif not first then
    return -1
  end
  return (stamp_high - RESERVED - first) + stamp_low
end

local function corrupt(kind)
  error('TOLLBARSTATE no ' .. kind .. ' has written this state')
end
