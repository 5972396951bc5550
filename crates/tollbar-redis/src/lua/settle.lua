-- Gives charges back and charges what was spent already: the twin of memory/settling.rs.
--
-- The blob: whether a reservation is settled by it (1 byte; 1: its name is the last key, and behind that comes
-- the request id where that is 2; 3: a part of an attempt, whose record is the last key; 4: such a part is
-- cancelled, by the stamps in its record, and for how long that is remembered follows as a double), the number
-- of counters and of adjustments (2 bytes each); then the adjustments: kind, whether it is a refund (0), an
-- overdraft (1) or a charge of a request that did not pass after all (2), which counter, the charge's stamp (in
-- multiples of 2^26, and the rest: it may pass 2^53), the amount, length of its numbers, its numbers.

local RESERVATION, WITH_REQUEST, PART, CANCELLED_PART = 1, 2, 3, 4
local what_for, counter_count, adjustment_count, at = struct.unpack('>BI2I2', blob)
local name, record = KEYS[counter_count + 1]
local cancelled_for
if what_for == CANCELLED_PART then
  cancelled_for, at = struct.unpack('>d', blob, at)
end
local states, fresh_at, pieces = {}, {}, {}
for counter = 1, counter_count do
  states[counter] = redis.call('GET', KEYS[counter])
end

-- Nothing is charged by an attempt from here on, should its charge come late.
local function refuse_attempt()
  save(name, 'x', math.min(now + cancelled_for, NUMBER_MAX))
end

if what_for == RESERVATION or what_for == WITH_REQUEST then
  local open = redis.call('GET', name)
  if not open then
    return 'absent'
  elseif #open ~= 8 then
    corrupt('reservation')
  elseif now >= struct.unpack('>d', open) then
    return 'absent'
  end
end

if what_for == PART or what_for == CANCELLED_PART then
  record = redis.call('GET', name)
  if not record or string.byte(record) ~= 99 then
    if what_for == CANCELLED_PART then
      refuse_attempt()
    end
    return 'absent'
  elseif what_for == CANCELLED_PART and #record ~= 1 + 17 * adjustment_count then
    corrupt('attempt')
  end
end

for adjustment = 1, adjustment_count do
  local kind, what, counter, stamp_high, stamp_low, amount, size
  kind, what, counter, stamp_high, stamp_low, amount, size, at =
    struct.unpack('>BBI2dddI2', blob, at)
  local is_paid = 1
  if what_for == CANCELLED_PART then
    is_paid, stamp_high, stamp_low = struct.unpack('>Bdd', record, 2 + 17 * (adjustment - 1))
  end
  local tokens, next, fresh = 0
  -- One that was emptied a moment ago is as if it were absent.
  local state = states[counter] ~= '' and states[counter]
  if is_paid == 1 and what == 1 then
    tokens, next, fresh = overdraws[kind](state, amount, at)
  elseif is_paid == 1 then
    tokens, next, fresh =
      refunds[kind](state, stamp_high, stamp_low, amount, at, what == 2)
  end
  if next then
    states[counter], fresh_at[counter] = next, fresh
  end
  pieces[adjustment] = struct.pack('>d', tokens)
  at = at + size
end
-- Nothing can go wrong from here on: it is settled, and for good.
if what_for == CANCELLED_PART then
  refuse_attempt()
elseif what_for > 0 then
  redis.call('DEL', name)
end
if what_for == WITH_REQUEST then
  redis.call('DEL', KEYS[counter_count + 2])
end
for counter = 1, counter_count do
  if fresh_at[counter] then
    save(KEYS[counter], states[counter], fresh_at[counter])
  end
end
return table.concat(pieces)
