-- Token bucket and leaky bucket: the twin of algorithm/debt.rs.
--
-- The state is 'b', when the debt is paid (7 bytes) and a part of a microsecond more (4). Where there
-- are reservations it is 'B', and then also the sum of all the time that was ever given back and the
-- last instant at which somebody could ask for some (7 each): see memory/settling.rs.

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

-- The state that owes `debt`, when it is fresh, when the debt is paid, and the part of a microsecond more.
local function owe(debt, den, sum, asked_until)
  local whole = math.floor(debt / den)
  local paid_at, remainder = now + whole, debt - whole * den
  local fresh_at = paid_at
  if remainder > 0 then
    fresh_at = paid_at + 1
  end
  if not sum then
    return struct.pack('>BI7I4', 98, paid_at, remainder), fresh_at, paid_at, remainder
  end
  if asked_until > fresh_at then
    fresh_at = asked_until
  end
  return struct.pack('>BI7I4I7I7', 66, paid_at, remainder, sum, asked_until), fresh_at, paid_at
end

-- The debt now, in units of 1/den microsecond and no more than can be owed; and whether it was more.
local function debt_of(paid_at, remainder, den, most)
  local whole = paid_at - now
  if whole < 0 then
    return 0, false
  end
  -- Compared before it is multiplied, so that no product passes 2^53.
  if whole > math.floor(most / den) then
    return most, true
  end
  if remainder >= den then
    remainder = den - 1
  end
  local debt = whole * den + remainder
  if debt > most then
    return most, true
  end
  return debt, false
end

steps[1] = function(state, cost, at)
  local num, den, full, most, burst = struct.unpack('>ddddd', blob, at)
  local paid_at, remainder, sum, asked_until = load_bucket(state)
  local debt, was_above_most = debt_of(paid_at, remainder, den, most)
  local outcome, retry_after, next, fresh_at = ALLOW, 0
  if cost > burst then
    outcome = NEVER
  elseif cost > 0 then
    -- In this order no sum passes 2^53.
    local over = debt - full + cost * num
    if over <= 0 then
      debt = debt + cost * num
      next, fresh_at, paid_at = owe(debt, den, sum, asked_until)
    else
      outcome, retry_after = DENY, math.ceil(over / den)
      if was_above_most then
        -- It was cut; store that, or the retry that is promised would not hold.
        next, fresh_at, paid_at = owe(debt, den, sum, asked_until)
      end
    end
  end
  local room = full - debt
  if room < 0 then
    room = 0
  end
  local reset_at = now + math.ceil(debt / den)
  return outcome, math.floor(room / num), reset_at, retry_after, next, fresh_at, paid_at
end

-- The state and when it is fresh where it owed more than can be owed; nil where it did not.
if cuts then
  cuts[1] = function(state, at)
    local num, den, full, most = struct.unpack('>dddd', blob, at)
    local paid_at, remainder, sum, asked_until = load_bucket(state)
    local debt, was_above_most = debt_of(paid_at, remainder, den, most)
    if was_above_most then
      return owe(debt, den, sum, asked_until)
    end
  end
end

-- A charge that may be given back: the state with its sum, when that is fresh, and the sum.
if holds then
  holds[1] = function(state, stamp)
    local paid_at, remainder, sum, asked_until = load_bucket(state)
    sum, asked_until = sum or now, math.max(asked_until or 0, stamp)
    local next = struct.pack('>BI7I4I7I7', 66, paid_at, remainder, sum, asked_until)
    return next, math.max(paid_at + 1, asked_until), sum
  end
end

if refunds then
  refunds[1] = function(state, stamp_high, stamp_low, amount, at)
    local num, den, full, most = struct.unpack('>dddd', blob, at)
    local paid_at, remainder, sum, asked_until = load_bucket(state)
    -- Without a sum nothing here can be given back; with an exhausted one nobody can tell what.
    if not sum or sum == NUMBER_MAX then
      return 0
    end
    local stamp = (stamp_high - sum) + stamp_low
    local unpaid = math.max(stamp - now, 0) * den
    local debt = debt_of(paid_at, remainder, den, most)
    local refunded = math.min(amount * num, unpaid, debt)
    if refunded == 0 then
      return 0
    end
    sum = math.min(sum + math.ceil(refunded / den), NUMBER_MAX)
    local next, fresh_at = owe(debt - refunded, den, sum, asked_until)
    return math.floor(refunded / num), next, fresh_at
  end

  overdraws[1] = function(state, amount, at)
    local num, den, full, most = struct.unpack('>dddd', blob, at)
    local paid_at, remainder, sum, asked_until = load_bucket(state)
    local debt = debt_of(paid_at, remainder, den, most)
    local charged = math.min(amount, math.floor((most - debt) / num))
    if charged == 0 then
      return 0
    end
    local next, fresh_at = owe(debt + charged * num, den, sum, asked_until)
    return charged, next, fresh_at
  end
end
