-- Windows that count from zero: the twin of algorithm/counted_window.rs. Fixed, staggered and calendar
-- windows are this, and differ in where theirs end.
--
-- The state is 'w', the end of the window (7 bytes) and the count (4); 'W' where the count needs 7. Then,
-- where there are reservations, the instant of the first one: see prelude.lua.

local function load_window(state)
  if not state then
    return 0, 0
  end
  local tag, size = string.byte(state), #state
  local ends_at, count, first
  if tag == 119 and size == 12 then
    ends_at, count = struct.unpack('>I7I4', state, 2)
  elseif tag == 87 and size == 15 then
    ends_at, count = struct.unpack('>I7I7', state, 2)
  elseif tag == 119 and size == 19 then
    ends_at, count, first = struct.unpack('>I7I4I7', state, 2)
  elseif tag == 87 and size == 22 then
    ends_at, count, first = struct.unpack('>I7I7I7', state, 2)
  else
    corrupt('window')
  end
  if ends_at > NUMBER_MAX or count > NUMBER_MAX then
    corrupt('window')
  end
  return ends_at, count, first
end

local function pack_window(ends_at, count, first)
  if count < 4294967296 then
    return struct.pack('>BI7I4', 119, ends_at, count) .. pack_first(first)
  end
  return struct.pack('>BI7I7', 87, ends_at, count) .. pack_first(first)
end

-- `new_end` is the end of the window that `now` is in.
local function count_in_window(state, limit, new_end, cost)
  local ends_at, count, first = load_window(state)
  -- A window that has not ended is in force, even if the clock has gone back before it.
  local fresh_at = keeps or ends_at
  if ends_at <= now then
    ends_at, count, first, fresh_at = new_end, 0, nil, new_end
  end
  local remaining = limit - count
  if remaining < 0 then
    remaining = 0
  end
  if cost > limit then
    return NEVER, remaining, ends_at, 0, nil, nil, ends_at
  elseif cost == 0 then
    return ALLOW, remaining, ends_at, 0, nil, nil, ends_at
  elseif cost <= remaining then
    local next = pack_window(ends_at, count + cost, first)
    return ALLOW, remaining - cost, ends_at, 0, next, fresh_at, ends_at
  end
  return DENY, remaining, ends_at, ends_at - now, nil, nil, ends_at
end

local hold_window, refund_in_window, overdraw_in_window

if holds then
  function hold_window(state)
    local ends_at, count, first = load_window(state)
    if ends_at <= now then
      return nil
    end
    first = first or now
    return pack_window(ends_at, count, first), ends_at, first
  end
end

if refunds then
  function refund_in_window(state, stamp_high, stamp_low, amount)
    local ends_at, count, first = load_window(state)
    if window_named(first, stamp_high, stamp_low) ~= ends_at or ends_at <= now then
      return 0
    end
    local refunded = math.min(amount, count)
    return refunded, pack_window(ends_at, count - refunded, first), ends_at
  end

  function overdraw_in_window(state, amount, new_end)
    local ends_at, count, first = load_window(state)
    if ends_at <= now then
      ends_at, count, first = new_end, 0, nil
    end
    local charged = math.min(amount, NUMBER_MAX - count)
    return charged, pack_window(ends_at, count + charged, first), ends_at
  end
end
