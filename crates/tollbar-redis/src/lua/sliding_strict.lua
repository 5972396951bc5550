-- Strict sliding window: the twin of algorithm/sliding_strict.rs.
--
-- The state is 'n', how many bytes a count takes, the number of the newest sub-window plus one (7
-- bytes), and the counts, the newest first, up to the oldest that is not zero. Where there are
-- reservations it is 'N', and ends with the instant of the first one: see prelude.lua.

local function load_strict(state, parts)
  if not state then
    return nil, {}
  end
  local tag, width = string.byte(state, 1, 2)
  local size, first = #state - 9
  if tag == 78 and size >= 7 then
    size, first = size - 7, struct.unpack('>I7', state, #state - 6)
    tag = 110
  end
  if tag ~= 110 or size < 0 or width < 1 or width > 7 or size % width ~= 0
    or size / width > parts + 1 then
    corrupt('strict window')
  end
  local newest = struct.unpack('>I7', state, 3) - 1
  local counts, format = {}, '>I' .. width
  for index = 1, size / width do
    local count = struct.unpack(format, state, 10 + (index - 1) * width)
    if count > NUMBER_MAX then
      corrupt('strict window')
    end
    counts[index] = count
  end
  if newest < 0 or newest > NUMBER_MAX then
    corrupt('strict window')
  end
  return newest, counts, first
end

local function pack_strict(newest, counts, first)
  local last, most = 0, 0
  for index, count in ipairs(counts) do
    if count > 0 then
      last = index
    end
    if count > most then
      most = count
    end
  end
  local width = 1
  while most >= 256 ^ width do
    width = width + 1
  end
  local format = '>I' .. width
  local pieces = { struct.pack('>BBI7', first and 78 or 110, width, newest + 1) }
  for index = 1, last do
    pieces[index + 1] = struct.pack(format, counts[index])
  end
  return table.concat(pieces) .. pack_first(first)
end

-- The sub-window in force. The newest stays so where the clock has gone back before it.
local function current_part(newest, length)
  local current = math.floor(now / length)
  if newest and newest > current then
    return newest
  end
  return current
end

-- Moves the counts on to `current`, and charges it.
local function charge_strict(newest, counts, current, cost, parts)
  local moved = {}
  local shift = newest and current - newest or parts + 1
  for index = 1, parts + 1 do
    moved[index] = counts[index - shift] or 0
  end
  moved[1] = moved[1] + cost
  return moved
end

steps[5] = function(state, cost, at)
  local limit, length, parts = struct.unpack('>ddd', blob, at)
  local newest, counts, first = load_strict(state, parts)
  local current = current_part(newest, length)
  local shift = newest and current - newest or 0
  -- At `current`, the count `index` is of the sub-window that is index - 1 + shift old.
  local used = 0
  for index = 1, parts + 1 - shift do
    used = used + (counts[index] or 0)
  end
  local remaining = math.max(limit - used, 0)
  local outcome, retry_after, next = ALLOW, 0
  if cost > limit then
    outcome = NEVER
  elseif cost > 0 and cost <= remaining then
    remaining = remaining - cost
    next = pack_strict(current, charge_strict(newest, counts, current, cost, parts), first)
    newest = current
  elseif cost > 0 then
    local number = current
    while used + cost > limit and number <= current + parts do
      used = used - (counts[newest - (number - parts) + 1] or 0)
      number = number + 1
    end
    outcome, retry_after = DENY, number * length - now
  end
  local fresh_at = newest and (newest + 1 + parts) * length or 0
  return outcome, remaining, math.max(fresh_at, now), retry_after, next, fresh_at, ((newest or -1) + 1) * length
end

if holds then
  holds[5] = function(state, _, at)
    local _, length, parts = struct.unpack('>ddd', blob, at)
    local newest, counts, first = load_strict(state, parts)
    if not newest then
      return nil
    end
    first = first or now
    return pack_strict(newest, counts, first), (newest + 1 + parts) * length, first
  end
end

if refunds then
  refunds[5] = function(state, stamp_high, stamp_low, amount, at, did_not_pass)
    local _, length, parts = struct.unpack('>ddd', blob, at)
    local newest, counts, first = load_strict(state, parts)
    local number = window_named(first, stamp_high, stamp_low) / length - 1
    if not newest or number < 0 or number > newest or number % 1 ~= 0 then
      return 0
    end
    local index = newest - number + 1
    local refunded = math.min(amount, counts[index] or 0)
    if refunded == 0 or number < current_part(newest, length) - parts then
      return 0
    end
    counts[index] = counts[index] - refunded
    -- A sub-window that was only begun by a request that did not pass has not begun.
    while did_not_pass and counts[1] == 0 do
      table.remove(counts, 1)
      newest = newest - 1
    end
    if not counts[1] then
      return refunded, '', now
    end
    return refunded, pack_strict(newest, counts, first), (newest + 1 + parts) * length
  end

  overdraws[5] = function(state, amount, at)
    local _, length, parts = struct.unpack('>ddd', blob, at)
    local newest, counts, first = load_strict(state, parts)
    local current = current_part(newest, length)
    local count = 0
    if newest == current then
      count = counts[1] or 0
    end
    local charged = math.min(amount, NUMBER_MAX - count)
    local moved = charge_strict(newest, counts, current, charged, parts)
    return charged, pack_strict(current, moved, first), (current + 1 + parts) * length
  end
end
