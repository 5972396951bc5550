-- Token bucket and leaky bucket: the twin of algorithm/debt.rs.
--
-- The state is 'b', when the debt is paid (7 bytes) and a part of a microsecond more (4). Where there
-- are reservations it is 'B', and then also the sum of all the time that was ever given back and the
-- last instant at which somebody could ask for some (7 each): see memory/settling.rs. It is kept until the
-- clock has passed the sum as well, because the next sum begins at the clock: less than this one, it
-- would make charges that are paid look as if they were not.
--
-- Where tokens are lent the tag is 'l' or 'L', and at the end is by how much the tolerance is cut (7 bytes): see
-- algorithm/debt/cut.rs. A version from before loans calls these states corrupt. A state whose cut has shrunk to
-- nothing is written without it.

-- The state as of now: a cut that has shrunk since is what is left of it, under a debt that is paid now. Or the
-- state `as_written`, for whoever writes it again without a charge.
local function load_bucket(state, as_written)
  if not state then
    return 0, 0
  end
  local tag, size = string.byte(state), #state
  local paid_at, remainder, sum, asked_until, cut
  if tag == 98 and size == 12 then
    paid_at, remainder = struct.unpack('>I7I4', state, 2)
    if paid_at > NUMBER_MAX then
      corrupt('bucket')
    end
    return paid_at, remainder
  elseif tag == 66 and size == 26 then
    paid_at, remainder, sum, asked_until = struct.unpack('>I7I4I7I7', state, 2)
  elseif tag == 108 and size == 19 then
    paid_at, remainder, cut = struct.unpack('>I7I4I7', state, 2)
  elseif tag == 76 and size == 33 then
    paid_at, remainder, sum, asked_until, cut = struct.unpack('>I7I4I7I7I7', state, 2)
  else
    corrupt('bucket')
  end
  if math.max(paid_at, sum or 0, asked_until or 0, cut or 0) > NUMBER_MAX then
    corrupt('bucket')
  end
  if cut and not as_written then
    local idle = now - paid_at
    if remainder > 0 then
      idle = idle - 1
    end
    if idle > 0 then
      paid_at, remainder, cut = now, 0, cut - idle
    end
    if cut <= 0 then
      cut = nil
    end
  end
  return paid_at, remainder, sum, asked_until, cut
end

-- The state whose debt is paid at `paid_at` and a part of a microsecond more, when it is fresh, and both
-- of these again.
local function pack_bucket(paid_at, remainder, sum, asked_until, cut)
  local fresh_at = paid_at
  if remainder > 0 then
    fresh_at = paid_at + 1
  end
  if cut then
    fresh_at = fresh_at + cut
    if not sum then
      return struct.pack('>BI7I4I7', 108, paid_at, remainder, cut), fresh_at, paid_at
    end
    fresh_at = math.max(fresh_at, asked_until, sum)
    local next = struct.pack('>BI7I4I7I7I7', 76, paid_at, remainder, sum, asked_until, cut)
    return next, fresh_at, paid_at
  end
  if not sum then
    return struct.pack('>BI7I4', 98, paid_at, remainder), fresh_at, paid_at, remainder
  end
  fresh_at = math.max(fresh_at, asked_until, sum)
  return struct.pack('>BI7I4I7I7', 66, paid_at, remainder, sum, asked_until), fresh_at, paid_at
end

-- The state that owes `debt` units.
local function owe(debt, den, sum, asked_until, cut)
  local whole = debt / den
  whole = whole - whole % 1
  return pack_bucket(now + whole, debt - whole * den, sum, asked_until, cut)
end

-- The state that owes `whole` microseconds and `units` less.
local function less(paid_at, remainder, whole, units, den, sum, asked_until, cut)
  paid_at, remainder = paid_at - whole, remainder - units
  if remainder < 0 then
    paid_at, remainder = paid_at - 1, remainder + den
  end
  return pack_bucket(paid_at, remainder, sum, asked_until, cut)
end

-- The debt now, in units of 1/den microsecond; and how many whole microseconds are owed beyond the
-- policy's largest debt. Those are taken off before anything is multiplied, so that no product passes
-- 2^53. A debt is never cut, and a denial writes nothing: algorithm/debt.rs has the reason.
local function debt_of(paid_at, remainder, den, most)
  local whole = paid_at - now
  if whole < 0 then
    return 0, 0
  end
  local excess = whole - math.floor(most / den)
  if excess < 0 then
    excess = 0
  end
  return (whole - excess) * den + math.min(remainder, den - 1), excess
end

steps[1] = function(state, cost, at)
  local num, den, full, most, burst = struct.unpack('>ddddd', blob, at)
  local paid_at, remainder, sum, asked_until, cut = load_bucket(state)
  local debt, excess = debt_of(paid_at, remainder, den, most)
  local outcome, retry_after, next, fresh_at = ALLOW, 0
  -- What may be owed.
  local free = full
  if cut then
    free = full - cut * den
  end
  if cost > burst then
    outcome = NEVER
  elseif cost > 0 then
    -- In this order no sum passes 2^53.
    local over = debt - free + cost * num
    if over <= 0 and excess == 0 then
      debt = debt + cost * num
      next, fresh_at, paid_at = owe(debt, den, sum, asked_until, cut)
    elseif cost * num <= free then
      outcome, retry_after = DENY, excess
      if over > 0 then
        retry_after = excess + math.ceil(over / den)
      end
    else
      -- First all debt has to be paid, up to the next microsecond, and then the cut shrinks.
      outcome = DENY
      retry_after = excess + math.ceil(debt / den) + cut + math.ceil((cost * num - full) / den)
    end
  end
  local room = free - debt
  if room < 0 or excess > 0 then
    room = 0
  end
  local remaining, reset_at = room / num, now + excess + math.ceil(debt / den)
  if cut then
    reset_at = reset_at + cut
  end
  return outcome, remaining - remaining % 1, reset_at, retry_after, next, fresh_at, paid_at
end

-- A charge that may be given back: the state with its sum, when that is fresh, and the sum.
if holds then
  holds[1] = function(state, stamp)
    local paid_at, remainder, sum, asked_until, cut = load_bucket(state, true)
    sum, asked_until = sum or now, math.max(asked_until or 0, stamp)
    local next, fresh_at = pack_bucket(paid_at, remainder, sum, asked_until, cut)
    return next, fresh_at, sum
  end
end

-- The state under a cut of `cut` or more.
if cuts then
  cuts[1] = function(state, cut)
    local paid_at, remainder, sum, asked_until, left = load_bucket(state)
    cut = math.max(cut, left or 0)
    if cut == 0 then
      return state
    elseif paid_at < now then
      paid_at, remainder = now, 0
    end
    return (pack_bucket(paid_at, remainder, sum, asked_until, cut))
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
    local paid_at, remainder, sum, asked_until, cut = load_bucket(state)
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
    local next, fresh_at = less(paid_at, remainder, whole, units, den, sum, asked_until, cut)
    return math.floor(refunded / num), next, fresh_at
  end

  overdraws[1] = function(state, amount, at)
    local num, den, full, most = struct.unpack('>dddd', blob, at)
    local paid_at, remainder, sum, asked_until, cut = load_bucket(state)
    local debt, excess = debt_of(paid_at, remainder, den, most)
    local charged = math.min(amount, math.floor(math.max(most - debt, 0) / num))
    if charged == 0 or excess > 0 then
      return 0
    end
    local next, fresh_at = owe(debt + charged * num, den, sum, asked_until, cut)
    return charged, next, fresh_at
  end
end
