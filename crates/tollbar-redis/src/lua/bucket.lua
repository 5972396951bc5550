-- Token bucket and leaky bucket: the twin of algorithm/debt.rs.
--
-- The state is 'b', when the debt is paid (7 bytes) and a part of a microsecond more (4). Where there
-- are reservations it is 'B', and then also the sum of all the time that was ever given back and the
-- last instant at which somebody could ask for some (7 each): see memory/settling.rs. It is kept until the
-- clock has passed the sum as well, because the next sum begins at the clock: less than this one, it
-- would make charges that are paid look as if they were not.

local function load_bucket(state)
  if not state then
    return 0, 0
  end
  local tag, size = string.byte(state), #state
  local paid_at, remainder, sum, asked_until
  if tag == 98 and size == 12 then
    paid_at, remainder = struct.unpack('>I7I4', state, 2)
  elseif tag == 66 and size == 26 then
    paid_at, remainder, sum, asked_until = struct.unpack('>I7I4I7I7', state, 2)
  else
    corrupt('bucket')
  end
  if paid_at > NUMBER_MAX or (sum and (sum > NUMBER_MAX or asked_until > NUMBER_MAX)) then
    corrupt('bucket')
  end
  return paid_at, remainder, sum, asked_until
end

-- The state whose debt is paid at `paid_at` and a part of a microsecond more, when it is fresh, and both
-- of these again.
local function pack_bucket(paid_at, remainder, sum, asked_until)
  local fresh_at = paid_at
  if remainder > 0 then
    fresh_at = paid_at + 1
  end
  if not sum then
    return struct.pack('>BI7I4', 98, paid_at, remainder), fresh_at, paid_at, remainder
  end
  fresh_at = math.max(fresh_at, asked_until, sum)
  return struct.pack('>BI7I4I7I7', 66, paid_at, remainder, sum, asked_until), fresh_at, paid_at
end

-- The state that owes `debt` units.
local function owe(debt, den, sum, asked_until)
  local whole = math.floor(debt / den)
  return pack_bucket(now + whole, debt - whole * den, sum, asked_until)
end

-- The state that owes `whole` microseconds and `units` less.
local function less(paid_at, remainder, whole, units, den, sum, asked_until)
  paid_at, remainder = paid_at - whole, remainder - units
  if remainder < 0 then
    paid_at, remainder = paid_at - 1, remainder + den
  end
  return pack_bucket(paid_at, remainder, sum, asked_until)
end

-- The debt now, in units of 1/den microsecond; and how many whole microseconds are owed beyond the
-- policy's largest debt. Those are taken off before anything is multiplied, so that no product passes
-- 2^53. A debt is never cut, and a denial writes nothing: algorithm/debt.rs has the reason.
local function debt_of(paid_at, remainder, den, most)
  local whole = paid_at - now
  if whole < 0 then
    return 0, 0
  end
  local excess = math.max(whole - math.floor(most / den), 0)
  return (whole - excess) * den + math.min(remainder, den - 1), excess
end

steps[1] = function(state, cost, at)
  local num, den, full, most, burst = struct.unpack('>ddddd', blob, at)
  local paid_at, remainder, sum, asked_until = load_bucket(state)
  local debt, excess = debt_of(paid_at, remainder, den, most)
  local outcome, retry_after, next, fresh_at = ALLOW, 0
  if cost > burst then
    outcome = NEVER
  elseif cost > 0 then
    -- In this order no sum passes 2^53.
    local over = debt - full + cost * num
    if over <= 0 and excess == 0 then
      debt = debt + cost * num
      next, fresh_at, paid_at = owe(debt, den, sum, asked_until)
    else
      outcome, retry_after = DENY, excess + math.max(math.ceil(over / den), 0)
    end
  end
  local room = full - debt
  if room < 0 or excess > 0 then
    room = 0
  end
  local reset_at = now + excess + math.ceil(debt / den)
  return outcome, math.floor(room / num), reset_at, retry_after, next, fresh_at, paid_at
end

-- A charge that may be given back: the state with its sum, when that is fresh, and the sum.
if holds then
  holds[1] = function(state, stamp)
    local paid_at, remainder, sum, asked_until = load_bucket(state)
    sum, asked_until = sum or now, math.max(asked_until or 0, stamp)
    local next = struct.pack('>BI7I4I7I7', 66, paid_at, remainder, sum, asked_until)
    return next, math.max(paid_at + 1, asked_until, sum), sum
  end
end

-- A fresh state. Its sum has grown by as much time as it takes until nothing charged so far could be
-- given back, and by a day, in case the clock goes back.
if resets then
  resets[1] = function(state)
    local _, _, sum, asked_until = load_bucket(state)
    if not sum then
      return nil
    end
    sum = math.min(sum + math.max(asked_until - now, 0) + 86400000000, NUMBER_MAX)
    return pack_bucket(0, 0, sum, 0)
  end
end

if refunds then
  refunds[1] = function(state, stamp_high, stamp_low, amount, at)
    local num, den = struct.unpack('>dd', blob, at)
    local paid_at, remainder, sum, asked_until = load_bucket(state)
    -- Without a sum nothing here can be given back; with an exhausted one nobody can tell what.
    if not sum or sum == NUMBER_MAX then
      return 0
    end
    local stamp = (stamp_high - sum) + stamp_low
    -- The least of what is asked for, what is not paid yet and what is owed: each in whole
    -- microseconds and units beyond, because in units alone they may pass 2^53.
    local asked = math.min(amount, math.floor(NUMBER_MAX / num)) * num
    local whole = math.floor(asked / den)
    local units = asked - whole * den
    local unpaid, owed = math.max(stamp - now, 0), math.max(paid_at - now, 0)
    if unpaid <= whole then
      whole, units = unpaid, 0
    end
    remainder = math.min(remainder, den - 1)
    if owed < whole or (owed == whole and remainder < units) then
      whole, units = owed, paid_at >= now and remainder or 0
    end
    local refunded = whole * den + units
    if refunded == 0 then
      return 0
    end
    sum = math.min(sum + math.ceil(refunded / den), NUMBER_MAX)
    local next, fresh_at = less(paid_at, remainder, whole, units, den, sum, asked_until)
    return math.floor(refunded / num), next, fresh_at
  end

  overdraws[1] = function(state, amount, at)
    local num, den, full, most = struct.unpack('>dddd', blob, at)
    local paid_at, remainder, sum, asked_until = load_bucket(state)
    local debt, excess = debt_of(paid_at, remainder, den, most)
    local charged = math.min(amount, math.floor(math.max(most - debt, 0) / num))
    if charged == 0 or excess > 0 then
      return 0
    end
    local next, fresh_at = owe(debt + charged * num, den, sum, asked_until)
    return charged, next, fresh_at
  end
end
