-- Sliding window counter: the twin of algorithm/sliding_window.rs.
--
-- The state is 's', the number of the window by its end (5 bytes), the count of the one before it and
-- its own (3 each); 'S' where one of them needs 7 bytes. Then, where there are reservations, the instant
-- of the first one: see prelude.lua.

local function load_sliding(state, length)
  if not state then
    return 0, 0, 0
  end
  local tag, size = string.byte(state), #state
  local number, previous, current, first
  if tag == 115 and size == 12 then
    number, previous, current = struct.unpack('>I5I3I3', state, 2)
  elseif tag == 83 and size == 22 then
    number, previous, current = struct.unpack('>I7I7I7', state, 2)
  elseif tag == 115 and size == 19 then
    number, previous, current, first = struct.unpack('>I5I3I3I7', state, 2)
  elseif tag == 83 and size == 29 then
    number, previous, current, first = struct.unpack('>I7I7I7I7', state, 2)
  else
    corrupt('sliding window')
  end
  local ends_at = number * length
  if ends_at > NUMBER_MAX or previous > NUMBER_MAX or current > NUMBER_MAX then
    corrupt('sliding window')
  end
  return ends_at, previous, current, first
end

local function pack_sliding(ends_at, previous, current, length, first)
  local number = ends_at / length
  if number < 1099511627776 and previous < 16777216 and current < 16777216 then
    return struct.pack('>BI5I3I3', 115, number, previous, current) .. pack_first(first)
  end
  return struct.pack('>BI7I7I7', 83, number, previous, current) .. pack_first(first)
end

-- The counts as of `now`: moved on by as many windows as have ended since.
local function slide(ends_at, previous, current, length)
  if now < ends_at then
    -- Also where the clock has gone back: the newest window stays in force.
    return ends_at, previous, current
  elseif now < ends_at + length then
    return ends_at + length, current, 0
  end
  return (math.floor(now / length) + 1) * length, 0, 0
end

-- When a window that began at `start` and counted `count` weighs no more than `room`, which is less.
local function weighs_at(start, count, room, ticks, tick)
  local ticks_left = math.floor(room * ticks / count)
  return start + (ticks - ticks_left) * tick
end

-- The window's end or, if a request of `cost` does not pass then, when it does: in the next window, where
-- what is current weighs as previous. A peek is told of a request of cost 1.
local function resets_at(ends_at, current, cost, limit, ticks, tick)
  cost = math.min(math.max(cost, 1), limit)
  if current + cost <= limit then
    return ends_at
  end
  return weighs_at(ends_at, current, limit - cost, ticks, tick)
end

steps[4] = function(state, cost, at)
  local limit, length, tick, ticks = struct.unpack('>dddd', blob, at)
  local ends_at, previous, current, first = load_sliding(state, length)
  ends_at, previous, current = slide(ends_at, previous, current, length)
  local weight = 0
  if previous > 0 then
    local elapsed = length - (ends_at - now)
    if elapsed < 0 then
      elapsed = 0
    end
    -- limit x ticks is below 2^53. So a product that is not, after the limit was lowered under a full
    -- counter or after an overdraft, weighs more than the limit, whatever its last digits are.
    weight = math.ceil(previous * (ticks - math.floor(elapsed / tick)) / ticks)
  end
  local remaining = limit - current - weight
  if remaining < 0 then
    remaining = 0
  end
  if cost > 0 and cost <= remaining then
    local next = pack_sliding(ends_at, previous, current + cost, length, first)
    local reset_at = resets_at(ends_at, current + cost, cost, limit, ticks, tick)
    return ALLOW, remaining - cost, reset_at, 0, next, ends_at + length, ends_at
  end
  local reset_at = resets_at(ends_at, current, cost, limit, ticks, tick)
  if cost > limit then
    return NEVER, remaining, reset_at, 0, nil, nil, ends_at
  elseif cost == 0 then
    return ALLOW, remaining, reset_at, 0, nil, nil, ends_at
  end
  local room, allowed_at = limit - current - cost, reset_at
  if room >= 0 then
    -- In this window, before its end.
    allowed_at = weighs_at(ends_at - length, previous, room, ticks, tick)
  end
  return DENY, remaining, reset_at, math.max(allowed_at - now, 0), nil, nil, ends_at
end

if holds then
  holds[4] = function(state, _, at)
    local _, length = struct.unpack('>dd', blob, at)
    local ends_at, previous, current, first = load_sliding(state, length)
    if ends_at + length <= now then
      return nil
    end
    first = first or now
    return pack_sliding(ends_at, previous, current, length, first), ends_at + length, first
  end
end

if refunds then
  refunds[4] = function(state, stamp_high, stamp_low, amount, at)
    local _, length = struct.unpack('>dd', blob, at)
    local ends_at, previous, current, first = load_sliding(state, length)
    local stamp = window_named(first, stamp_high, stamp_low)
    if stamp < 0 or stamp + length <= now then
      return 0
    end
    local refunded = 0
    if stamp == ends_at then
      refunded = math.min(amount, current)
      current = current - refunded
    elseif stamp + length == ends_at then
      refunded = math.min(amount, previous)
      previous = previous - refunded
    end
    if refunded == 0 then
      return 0
    end
    return refunded, pack_sliding(ends_at, previous, current, length, first), ends_at + length
  end

  overdraws[4] = function(state, amount, at)
    local _, length = struct.unpack('>dd', blob, at)
    local ends_at, previous, current, first = load_sliding(state, length)
    ends_at, previous, current = slide(ends_at, previous, current, length)
    local charged = math.min(amount, NUMBER_MAX - current)
    local next = pack_sliding(ends_at, previous, current + charged, length, first)
    return charged, next, ends_at + length
  end
end
