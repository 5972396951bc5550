-- Several questions at one instant: one request under several policies, charged all or none, or
-- requests that have nothing to do with each other. The twin of memory/deciding.rs.
--
-- The blob: whether all or none (1 byte), whether it is charged once and whether it can be settled (1
-- byte each; then the length of life as a double, and for the first the question's fingerprint of 8
-- bytes and how often it is answered again at most; it can be given back without a name of its own where that is 2, and as a part of an attempt, whose
-- record is the last key, where it is 3), the number of counters and of entries (2 bytes each); then the
-- entries: kind, role, place, which counter, cost, length of its numbers, its numbers.

local ENFORCE, SHADOW = 0, 1

-- The place of an entry among alternatives: by itself, first of a group, first of the group's next alternative, or in
-- the alternative of the entry before it. store/alternative.rs says what these are.
local PLAIN, GROUP, NEXT, SAME = 0, 1, 2, 3

local all_or_none, is_once, is_held, at = struct.unpack('>BBB', blob)
local ATTEMPT = 3
local once_ttl, fingerprint, replays_max, hold_ttl, counter_count, entry_count
if is_once == 1 then
  once_ttl, fingerprint, replays_max, at = struct.unpack('>dc8B', blob, at)
end
if is_held == 1 or is_held == ATTEMPT then
  hold_ttl, at = struct.unpack('>d', blob, at)
end
counter_count, entry_count, at = struct.unpack('>I2I2', blob, at)
local once_key, hold_key = KEYS[counter_count + 1], KEYS[counter_count + is_once + 1]

if is_once == 1 then
  local answered = replay(once_key, fingerprint, replays_max)
  if answered then
    return answered
  end
end

-- An attempt that was given up before this came, or a second copy of it.
if is_held == ATTEMPT and redis.call('GET', hold_key) then
  return 'cancelled'
end

local kinds, roles, places, counters, costs, numbers_at = {}, {}, {}, {}, {}, {}
for entry = 1, entry_count do
  local size
  kinds[entry], roles[entry], places[entry], counters[entry], costs[entry], size, at =
    struct.unpack('>BBBI2dI2', blob, at)
  numbers_at[entry] = at
  at = at + size
end

local before, after, fresh_at = {}, {}, {}
for counter = 1, counter_count do
  before[counter] = redis.call('GET', KEYS[counter])
  after[counter] = before[counter]
end

local function save_all()
  for counter = 1, counter_count do
    if fresh_at[counter] then
      save(KEYS[counter], after[counter], fresh_at[counter])
    end
  end
end

local outcomes, remainings, resets, retries = {}, {}, {}, {}
-- Of a stamp that takes two numbers the second; with a reservation, the sum of a bucket.
local heights, delays, stamps, lows = {}, {}, {}, {}

-- Decides one entry on `after`, and charges it there.
local function decide(entry)
  local counter = counters[entry]
  local next, fresh
  outcomes[entry], remainings[entry], resets[entry], retries[entry], next, fresh, stamps[entry],
    heights[entry], delays[entry], lows[entry] = steps[kinds[entry]](after[counter], costs[entry], numbers_at[entry])
  if next then
    after[counter], fresh_at[counter] = next, fresh
  end
end

local function answer()
  local pieces = {}
  for entry = 1, entry_count do
    pieces[entry] = struct.pack('>BdddBddd', outcomes[entry], remainings[entry], resets[entry],
      retries[entry], heights[entry] or 0, delays[entry] or 0, stamps[entry], lows[entry] or 0)
  end
  return table.concat(pieces)
end

if all_or_none == 0 then
  for entry = 1, entry_count do
    decide(entry)
  end
  save_all()
  return answer()
end

-- Of the entries of alternatives: that another one pays.
local is_unused = {}

local function copy(values)
  local copied = {}
  for counter = 1, counter_count do
    copied[counter] = values[counter]
  end
  return copied
end

-- Charges the first alternative of the group at `entry` that allows. Returns where the next group begins, and whether
-- one was charged.
local function decide_group(entry)
  local is_paid = false
  repeat
    local first, pays = entry, not is_paid
    local after_before, fresh_before
    if pays then
      after_before, fresh_before = copy(after), copy(fresh_at)
    end
    repeat
      if not is_paid then
        decide(entry)
        pays = pays and outcomes[entry] == ALLOW
      end
      entry = entry + 1
    until places[entry] ~= SAME
    if not pays then
      if not is_paid then
        after, fresh_at = after_before, fresh_before
      end
      for unused = first, entry - 1 do
        is_unused[unused] = true
      end
    end
    is_paid = is_paid or pays
  until places[entry] ~= NEXT
  return entry, is_paid
end

-- Has the entries that were not charged, and would have been allowed, say what remains in `states`.
local function report(entry, states)
  if outcomes[entry] == nil or outcomes[entry] == ALLOW then
    local _
    outcomes[entry], remainings[entry], resets[entry], retries[entry], _, _, _, heights[entry],
      delays[entry] = steps[kinds[entry]](states[counters[entry]], 0, numbers_at[entry])
    stamps[entry] = stamps[entry] or 0
  end
end

local is_allowed = true
for role = ENFORCE, SHADOW do
  local entry = 1
  while entry <= entry_count do
    if roles[entry] ~= role then
      entry = entry + 1
    elseif places[entry] == PLAIN then
      decide(entry)
      is_allowed = is_allowed and (role == SHADOW or outcomes[entry] == ALLOW)
      entry = entry + 1
    else
      local allows
      entry, allows = decide_group(entry)
      is_allowed = is_allowed and (role == SHADOW or allows)
    end
  end
end

if not is_allowed then
  for entry = 1, entry_count do
    report(entry, before)
  end
  return answer()
end
for entry in pairs(is_unused) do
  report(entry, after)
end

if is_held > 0 then
  for entry = 1, entry_count do
    local hold, counter = holds[kinds[entry]], counters[entry]
    local next, fresh
    local sum
    if hold and not is_unused[entry] then
      next, fresh, sum = hold(after[counter], stamps[entry], numbers_at[entry])
    end
    if next then
      after[counter], fresh_at[counter], lows[entry] = next, fresh, sum
    end
  end
end
save_all()
local answered = answer()
if is_once == 1 then
  remember(once_key, fingerprint, once_ttl, answered)
end
if is_held == 1 then
  local open_until = math.min(now + hold_ttl, NUMBER_MAX)
  save(hold_key, struct.pack('>d', open_until), open_until)
end
if is_held == ATTEMPT then
  -- What each entry has paid, for settle.lua: whether it has, and its stamp in two numbers whose sum it is. The
  -- first of them is what does not fit 2^53 together with the second: the step of a warm-up, RESERVED, and the
  -- instant of a queue.
  local pieces = { 'c' }
  for entry = 1, entry_count do
    local kind, low = kinds[entry], lows[entry] or 0
    local high = (heights[entry] or 0) * 72057594037927936
    if kind == 7 then
      kind = struct.unpack('>B', blob, numbers_at[entry] + 24)
    end
    if kind == 8 then
      high = stamps[entry] * 1024
    else
      if kind >= 2 and kind <= 5 and low > 0 then
        high = high + RESERVED
      end
      low = stamps[entry] + low
    end
    local is_paid = outcomes[entry] == ALLOW and not is_unused[entry]
    pieces[entry + 1] = struct.pack('>Bdd', is_paid and 1 or 0, high, low)
  end
  local kept_until = math.min(now + hold_ttl, NUMBER_MAX)
  save(hold_key, table.concat(pieces), kept_until)
end
return answered
