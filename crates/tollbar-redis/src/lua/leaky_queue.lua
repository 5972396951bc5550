-- Leaky bucket as a queue: the twin of algorithm/leaky_queue.rs. Its state is that of a bucket, and is
-- read in another way: what is owed before a charge is the delay.

-- What a charge that has left this behind is called, in two parts: see `Owed::name`. One whose parts of
-- a microsecond do not fit 10 bits has no name.
local function name_of(paid_at, remainder, den)
  if den > 1024 then
    return 0, 0
  end
  return paid_at, math.min(remainder, 1023)
end

steps[8] = function(state, cost, at)
  local num, den, full, wait_max, places = struct.unpack('>ddddd', blob, at)
  local paid_at, remainder = load_bucket(state)
  local debt, excess = debt_of(paid_at, remainder, den, full)
  local outcome, retry_after, delay, next, fresh_at = ALLOW, 0, 0
  if cost > places then
    outcome = NEVER
  elseif cost > 0 then
    local debt_max = math.min(full - cost * num, wait_max)
    if debt <= debt_max and excess == 0 then
      delay = math.ceil(debt / den)
      debt = debt + cost * num
      next, fresh_at, paid_at, remainder = owe(debt, den)
    else
      outcome, retry_after = DENY, excess + math.max(math.ceil((debt - debt_max) / den), 0)
    end
  end
  local remaining = 0
  if debt <= wait_max and excess == 0 then
    remaining = math.floor(math.max(full - debt, 0) / num)
  end
  local reset_at = now + excess + math.ceil(debt / den)
  local stamp, stamp_low = name_of(paid_at, remainder, den)
  return outcome, remaining, reset_at, retry_after, next, fresh_at, stamp, 0, delay, stamp_low
end

if refunds then
  -- Only the last places come back, and only before their turn: whoever has queued behind them was told
  -- a delay that counts them. A request that did not pass after all has not left, though its turn came.
  -- The stamp of a warm-up has the instant modulo `span`.
  refunds[8] = function(state, stamp_high, stamp_low, amount, at, did_not_pass, span)
    local num, den, full, _, places = struct.unpack('>ddddd', blob, at)
    local paid_at, remainder = load_bucket(state)
    local asked_low = stamp_low % 1024
    local asked = stamp_high / 1024 + (stamp_low - asked_low) / 1024
    local named, named_low = name_of(paid_at, remainder, den)
    if span then
      named = named % span
    end
    local is_last = asked + asked_low > 0 and asked == named and asked_low == named_low
    if not is_last or amount == 0 or amount > places then
      return 0
    end
    local debt, excess = debt_of(paid_at, remainder, den, full)
    local returned = amount * num
    if debt <= returned and excess == 0 then
      if not did_not_pass then
        return 0
      end
      returned = debt
    end
    local whole = math.floor(returned / den)
    local next, fresh_at =
      less(paid_at, math.min(remainder, den - 1), whole, returned - whole * den, den)
    return amount, next, fresh_at
  end

  overdraws[8] = function()
    return 0
  end
end
