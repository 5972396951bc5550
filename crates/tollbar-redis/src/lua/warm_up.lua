-- A limit that climbs for a new key: the twin of algorithm/warm_up.rs, around any of the others.
-- Permits (kinds 9 and 10) promise nothing, and the stamp of a queue (kind 8) has the step in it.
--
-- The state is 'u', when the key was born and when it will be new again (7 bytes each), and the state of
-- the algorithm. Its numbers: how long the climb takes, in how many steps, the largest cost at full
-- height; which algorithm it is and how many bytes its numbers take; these for each step.

local function load_life(state)
  if not state then
    return 0, 0, false
  elseif string.byte(state) ~= 117 or #state < 15 then
    corrupt('warm-up')
  end
  local born, new_at = struct.unpack('>I7I7', state, 2)
  if born > NUMBER_MAX or new_at > NUMBER_MAX then
    corrupt('warm-up')
  end
  local inner = string.sub(state, 16)
  return born, new_at, #inner > 0 and inner
end

local function pack_life(born, new_at, inner)
  return struct.pack('>BI7I7', 117, born, new_at) .. (inner or '')
end

-- The step of a key at `at`.
local function step_at(born, new_at, at, over, steps_max)
  if at >= new_at then
    return 0
  end
  local age = math.min(math.max(at - born, 0), over)
  return math.floor(age * steps_max / over)
end

-- When the step of `at` is over for a key that is charged nothing; nil where it is new.
local function step_ends(born, new_at, at, over, steps_max)
  if new_at <= at then
    return nil
  end
  local step = step_at(born, new_at, at, over, steps_max) + 1
  if step > steps_max then
    return new_at
  end
  return math.min(new_at, born + math.ceil(step * over / steps_max))
end

-- Where the stamp of a queue has its step: above the instant, of which four bits are left out.
local QUEUE_STEP = 281474976710656

steps[7] = function(state, cost, at)
  local over, steps_max, capacity, kind, size, rungs = struct.unpack('>dddBB', blob, at)
  local born, new_at, inner = load_life(state)
  local is_possible = cost <= capacity
  local step = step_at(born, new_at, now, over, steps_max)
  local outcome, remaining, reset_at, retry_after, next, fresh_at, stamp, _, delay, stamp_low =
    steps[kind](inner, cost, rungs + step * size)
  if kind == 8 and stamp + stamp_low > 0 then
    stamp = step * QUEUE_STEP + stamp % QUEUE_STEP
  end
  if outcome == ALLOW and cost > 0 then
    if now >= new_at then
      born = now
    end
    new_at = now + over
    return outcome, remaining, reset_at, retry_after, pack_life(born, new_at, next),
      math.max(fresh_at, new_at), stamp, step, delay, stamp_low
  end
  if outcome ~= ALLOW and is_possible then
    -- Within a step the algorithm itself knows when the request passes. So each step that the key
    -- will go through is asked when it begins, until one lets it pass before it is over.
    local real_now = now
    outcome, retry_after = BUSY, 0
    for _ = 0, kind >= 9 and -1 or steps_max + 1 do
      local asked_step = step_at(born, new_at, now, over, steps_max)
      local answer, _, _, wait = steps[kind](inner, cost, rungs + asked_step * size)
      local ends = step_ends(born, new_at, now, over, steps_max)
      if answer == ALLOW or answer == DENY then
        local allowed_at = now + wait
        if not ends or allowed_at < ends then
          outcome, retry_after = DENY, allowed_at - real_now
          -- A window ends, or a bucket fills, before the limit has climbed to the cost.
          reset_at = math.max(reset_at, allowed_at)
          break
        end
      end
      if not ends then
        break
      end
      now = ends
    end
    now = real_now
  end
  return outcome, remaining, reset_at, retry_after, nil, nil, stamp, step, delay, stamp_low
end

if holds then
  holds[7] = function(state, stamp, at)
    local kind, _, rungs = struct.unpack('>BB', blob, at + 24)
    if not holds[kind] then
      return nil
    end
    local born, new_at, inner = load_life(state)
    local next, fresh_at, sum = holds[kind](inner, stamp, rungs)
    if not next then
      return nil
    end
    return pack_life(born, new_at, next), math.max(fresh_at, new_at), sum
  end
end

-- The key is new, and so is its counter: a bucket or leases.
if resets then
  resets[7] = function(state)
    local _, _, inner = load_life(state)
    local next, fresh_at = (resets[10] or resets[1])(inner)
    if not next then
      return nil
    end
    return pack_life(0, 0, next), fresh_at
  end
end

-- The leases of a key are renewed, and it is as warm as before.
if renews then
  renews[7] = function(state, stamp_high, stamp_low, at)
    local _, _, _, kind, size, rungs = struct.unpack('>dddBB', blob, at)
    local born, new_at, inner = load_life(state)
    local renewed_until, next, fresh_at = renews[kind](inner, stamp_high, stamp_low, rungs)
    if not next then
      return renewed_until
    end
    return renewed_until, pack_life(born, new_at, next), math.max(fresh_at, new_at)
  end
end

if refunds then
  -- By the numbers of the step that was charged: a token of another is dearer.
  refunds[7] = function(state, stamp_high, stamp_low, amount, at, did_not_pass)
    local _, steps_max, _, kind, size, rungs = struct.unpack('>dddBB', blob, at)
    local born, new_at, inner = load_life(state)
    local above = kind == 8 and QUEUE_STEP * 1024 or 72057594037927936
    local step = math.floor(stamp_high / above)
    stamp_high = stamp_high - step * above
    at = rungs + math.min(step, steps_max) * size
    local tokens, next, fresh_at =
      refunds[kind](inner, stamp_high, stamp_low, amount, at, did_not_pass, QUEUE_STEP)
    if not next then
      return tokens
    end
    return tokens, pack_life(born, new_at, next), math.max(fresh_at, new_at)
  end

  overdraws[7] = function(state, amount, at)
    local over, steps_max, _, kind, size, rungs = struct.unpack('>dddBB', blob, at)
    local born, new_at, inner = load_life(state)
    local step = step_at(born, new_at, now, over, steps_max)
    local charged, next, fresh_at = overdraws[kind](inner, amount, rungs + step * size)
    if charged > 0 then
      if now >= new_at then
        born = now
      end
      new_at = now + over
    end
    if not next then
      return charged
    end
    return charged, pack_life(born, new_at, next), math.max(fresh_at, new_at)
  end
end
