-- The coordinator of requests whose counters are in several slots: what store/transaction.rs asks of the one
-- slot that knows how such a request ends.
--
-- KEYS[1] the intents: a hash from the name of a request to what it is about to do
-- KEYS[2] when they may be taken up by others: a sorted set of the same names
-- then the answer that is remembered for a request id, and the open reservation, where the blob says so
--
-- An intent is a fingerprint (8 bytes), the attempt (16), its state (1), until when it may be committed and
-- when it is dropped (doubles); then the calls that end it in each slot, which only clients read.
--
-- The blob: what to do, whether there is a request id, whether there is a reservation (1 byte each); then what
-- each part below reads.

local BEGIN, COMMIT, REMOVE, CLAIM, SETTLE = 1, 2, 3, 4, 5
local PENDING, ABORTING, SETTLING = 0, 1, 2

-- The most intents of one coordinator. Others are refused: they pile up only while slots cannot be asked.
local INTENTS_MAX = 4096

local task, has_once, has_hold, at = struct.unpack('>BBB', blob)
local intents, deadlines = KEYS[1], KEYS[2]
local once_key, hold_key = KEYS[3], KEYS[3 + has_once]

local function load_intent(name)
  local intent = redis.call('HGET', intents, name)
  if not intent then
    return nil
  elseif #intent < 41 then
    corrupt('intent')
  end
  return struct.unpack('>c8c16Bdd', intent)
end

local function save_intent(name, fingerprint, attempt, state, life, drop_after, calls)
  local deadline = math.min(now + life, NUMBER_MAX)
  local drop_at = math.min(deadline + drop_after, NUMBER_MAX)
  local head = struct.pack('>c8c16Bdd', fingerprint, attempt, state, deadline, drop_at)
  redis.call('HSET', intents, name, head .. calls)
  redis.call('ZADD', deadlines, deadline, name)
end

local function remove_intent(name)
  redis.call('HDEL', intents, name)
  redis.call('ZREM', deadlines, name)
end

if task == BEGIN then
  local name, fingerprint, replays_max, attempt, life, drop_after
  name, fingerprint, replays_max, attempt, life, drop_after, at =
    struct.unpack('>c14c8Bc16dd', blob, at)
  if has_once == 1 then
    local answered = replay(once_key, fingerprint, replays_max)
    if answered then
      return answered
    end
  end
  local before = load_intent(name)
  if before then
    return before == fingerprint and 'P' or 'reused'
  elseif redis.call('HLEN', intents) >= INTENTS_MAX then
    return 'F'
  end
  save_intent(name, fingerprint, attempt, PENDING, life, drop_after, string.sub(blob, at))
  return 'B'
end

-- The point of no return: before it the request has not passed, after it its charges stay.
if task == COMMIT then
  local name, attempt, once_ttl, hold_ttl
  name, attempt, once_ttl, hold_ttl, at = struct.unpack('>c14c16dd', blob, at)
  local fingerprint, owner, state, deadline = load_intent(name)
  if not fingerprint or owner ~= attempt or state ~= PENDING or now >= deadline then
    return 'L'
  end
  if has_once == 1 then
    remember(once_key, fingerprint, once_ttl, string.sub(blob, at))
  end
  if has_hold == 1 then
    local open_until = math.min(now + hold_ttl, NUMBER_MAX)
    save(hold_key, struct.pack('>dc16', open_until, attempt), open_until)
  end
  remove_intent(name)
  return 'C'
end

-- Answers 'R' to the one caller whose call has removed the intent.
if task == REMOVE then
  local name, attempt = struct.unpack('>c14c16', blob, at)
  local fingerprint, owner = load_intent(name)
  if fingerprint and owner == attempt then
    remove_intent(name)
    return 'R'
  end
  return ''
end

-- Hands out intents whose time is up. From then on they cannot be committed. Those that are not removed within
-- `patience` are handed out again.
if task == CLAIM then
  local patience, count_max = struct.unpack('>dI2', blob, at)
  local names = redis.call('ZRANGEBYSCORE', deadlines, '-inf', now, 'LIMIT', 0, count_max)
  local pieces = {}
  for _, name in ipairs(names) do
    local fingerprint, attempt, state, deadline, drop_at, calls_at = load_intent(name)
    if not fingerprint or now >= drop_at then
      remove_intent(name)
    else
      local calls = string.sub(redis.call('HGET', intents, name), calls_at)
      if state == PENDING then
        local head = struct.pack('>c8c16Bdd', fingerprint, attempt, ABORTING, deadline, drop_at)
        redis.call('HSET', intents, name, head .. calls)
      end
      redis.call('ZADD', deadlines, math.min(now + patience, NUMBER_MAX), name)
      pieces[#pieces + 1] = struct.pack('>c14c16I4', name, attempt, #calls) .. calls
    end
  end
  return table.concat(pieces)
end

-- Takes an open reservation away, and notes what is to become of it. Answers which attempt has made it.
if task == SETTLE then
  local name, forgets, life, drop_after
  name, forgets, life, drop_after, at = struct.unpack('>c14Bdd', blob, at)
  local before, owner = load_intent(name)
  if before then
    -- The same settlement by a caller that has not finished it: this one may.
    return 'S' .. owner
  end
  local open = redis.call('GET', hold_key)
  if not open then
    return 'absent'
  elseif #open ~= 24 then
    corrupt('reservation')
  end
  local open_until, attempt = struct.unpack('>dc16', open)
  if now >= open_until then
    return 'absent'
  elseif redis.call('HLEN', intents) >= INTENTS_MAX then
    return 'F'
  end
  redis.call('DEL', hold_key)
  if forgets == 1 and has_once == 1 then
    redis.call('DEL', once_key)
  end
  save_intent(name, '--------', attempt, SETTLING, life, drop_after, string.sub(blob, at))
  return 'S' .. attempt
end

error('TOLLBARSTATE no such task')
