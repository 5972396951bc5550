-- Sliding window log: the twin of algorithm/sliding_log.rs.
--
-- The state is 'l', the tokens of all stamps (4 bytes), and the stamps, oldest first: the instant (7
-- bytes) and its tokens (2). Only the newest may have none. What is in between is never looked at: old
-- stamps leave at the front and a new one is appended.

local STAMP = 9
local STAMP_TOKENS_MAX = 4095
local LOG_TOKENS_MAX = 20000

local function stamp_at(state, index)
  local at, tokens = struct.unpack('>I7I2', state, 6 + (index - 1) * STAMP)
  if at > NUMBER_MAX then
    corrupt('log')
  end
  return at, tokens
end

-- The tokens, how many stamps there are, and the newest of them.
local function load_log(state)
  if not state then
    return 0, 0, 0, 0
  end
  local count = (#state - 5) / STAMP
  if string.byte(state) ~= 108 or count < 0 or count ~= math.floor(count) then
    corrupt('log')
  end
  local tokens = struct.unpack('>I4', state, 2)
  if count == 0 then
    return tokens, 0, 0, 0
  end
  local newest_at, newest_tokens = stamp_at(state, count)
  return tokens, count, newest_at, newest_tokens
end

-- The present, and how many stamps have left the window and what they were worth.
local function standing(state, tokens, count, newest_at, window)
  -- Where the clock has gone back, the newest charge is the present.
  local present = math.max(now, newest_at)
  if newest_at + window <= present then
    return present, count, tokens
  end
  local gone, gone_tokens = 0, 0
  while gone < count do
    local at, worth = stamp_at(state, gone + 1)
    if at + window > present then
      break
    end
    gone, gone_tokens = gone + 1, gone_tokens + worth
  end
  return present, gone, gone_tokens
end

-- The state without the stamps that have left, and with `cost` charged at `present`.
local function charge_log(state, present, gone, gone_tokens, cost)
  local tokens, count, newest_at, newest_tokens = load_log(state)
  local first, last = gone + 1, count
  local more = 0
  if first <= last and newest_at == present then
    more = math.min(cost, STAMP_TOKENS_MAX - newest_tokens)
  end
  -- The newest is written anew where more is charged to it, and where it has nothing.
  local is_replaced = first <= last and (more > 0 or newest_tokens == 0)
  if is_replaced then
    last = last - 1
  end
  local pieces = { struct.pack('>BI4', 108, tokens - gone_tokens + cost) }
  if first <= last then
    pieces[2] = string.sub(state, 6 + (first - 1) * STAMP, 5 + last * STAMP)
  end
  local left = cost
  if is_replaced and newest_at == present then
    pieces[#pieces + 1] = struct.pack('>I7I2', present, newest_tokens + more)
    left = cost - more
  end
  while left > 0 do
    local part = math.min(left, STAMP_TOKENS_MAX)
    pieces[#pieces + 1] = struct.pack('>I7I2', present, part)
    left = left - part
  end
  return table.concat(pieces)
end

-- When the newest stamp that has tokens was charged.
local function newest_charged(state, count, newest_at, newest_tokens)
  if newest_tokens > 0 then
    return newest_at
  elseif count > 1 then
    return (stamp_at(state, count - 1))
  end
end

-- When `needed` more tokens will have left.
local function room_at(state, count, gone, needed, window)
  for index = gone + 1, count do
    local at, worth = stamp_at(state, index)
    if worth >= needed then
      return at + window
    end
    needed = needed - worth
  end
  return NUMBER_MAX
end

steps[6] = function(state, cost, at)
  local limit, window = struct.unpack('>dd', blob, at)
  local tokens, count, newest_at, newest_tokens = load_log(state)
  local present, gone, gone_tokens = standing(state, tokens, count, newest_at, window)
  local used = math.max(tokens - gone_tokens, 0)
  local remaining = math.max(limit - used, 0)
  if cost > 0 and cost <= remaining then
    local next = charge_log(state, present, gone, gone_tokens, cost)
    return ALLOW, remaining - cost, present + window, 0, next, present + window, present
  end
  local outcome, retry_after = ALLOW, 0
  if cost > limit then
    outcome = NEVER
  elseif cost > 0 then
    local allowed_at = room_at(state, count, gone, used + cost - limit, window)
    outcome, retry_after = DENY, math.max(allowed_at - now, 0)
  end
  local charged_at = newest_charged(state, count, newest_at, newest_tokens)
  local reset_at = now
  if charged_at and charged_at + window > present then
    reset_at = charged_at + window
  end
  return outcome, remaining, reset_at, retry_after, nil, nil, newest_at
end

if refunds then
  refunds[6] = function(state, stamp_high, stamp_low, amount, at)
    local _, window = struct.unpack('>dd', blob, at)
    local tokens, count, newest_at, newest_tokens = load_log(state)
    local charged_at = stamp_high + stamp_low
    if amount == 0 or count == 0 or charged_at + window <= math.max(now, newest_at) then
      return 0
    end
    -- The newest stays even if nothing is left of it: it is the present where the clock goes back.
    local left, kept = amount, {}
    local index = count
    while index > 0 do
      local at, worth = stamp_at(state, index)
      if at < charged_at then
        break
      end
      if at == charged_at then
        local back = math.min(worth, left)
        left, worth = left - back, worth - back
      end
      if worth > 0 or index == count then
        table.insert(kept, 1, struct.pack('>I7I2', at, worth))
      end
      index = index - 1
    end
    local refunded = amount - left
    local header = struct.pack('>BI4', 108, math.max(tokens - refunded, 0))
    local next = header .. string.sub(state, 6, 5 + index * STAMP) .. table.concat(kept)
    return refunded, next, newest_at + window
  end

  overdraws[6] = function(state, amount, at)
    local _, window = struct.unpack('>dd', blob, at)
    local tokens, count, newest_at = load_log(state)
    local present, gone, gone_tokens = standing(state, tokens, count, newest_at, window)
    local used = math.max(tokens - gone_tokens, 0)
    local charged = math.min(amount, math.max(LOG_TOKENS_MAX - used, 0))
    return charged, charge_log(state, present, gone, gone_tokens, charged), present + window
  end
end
