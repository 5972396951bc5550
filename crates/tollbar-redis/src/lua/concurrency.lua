-- Permits in flight: the twin of algorithm/concurrency.rs. The state is 'c' and their number (5 bytes). It
-- has no end: what is taken stays taken until it is given back, and then the counter is gone.

local function load_permits(state)
  if not state then
    return 0
  end
  if string.byte(state) ~= 99 or #state ~= 6 then
    corrupt('permits')
  end
  return (struct.unpack('>I5', state, 2))
end

-- `count` permits are in flight, and `cost` more are asked for.
local function take_permits(limit, count, cost)
  local remaining = math.max(limit - count, 0)
  if cost > limit then
    return NEVER, remaining
  elseif cost <= remaining then
    return ALLOW, remaining - cost
  end
  return BUSY, remaining
end

steps[9] = function(state, cost, at)
  local limit = struct.unpack('>d', blob, at)
  local count = load_permits(state)
  local outcome, remaining = take_permits(limit, count, cost)
  local next
  if outcome == ALLOW and cost > 0 then
    next = struct.pack('>BI5', 99, count + cost)
  end
  return outcome, remaining, now, 0, next, FOR_EVER, 0
end

if refunds then
  refunds[9] = function(state, stamp_high, stamp_low, amount)
    local count = load_permits(state)
    local returned = math.min(amount, count)
    if returned == 0 then
      return 0
    end
    return returned, struct.pack('>BI5', 99, count - returned), count > returned and FOR_EVER or now
  end

  overdraws[9] = function()
    return 0
  end
end
