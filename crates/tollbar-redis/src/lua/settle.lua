-- Gives charges back and charges what was spent already: the twin of memory/settling.rs.
--
-- The blob: whether a reservation is settled by it (1 byte; then its name is the last key), the number
-- of counters and of adjustments (2 bytes each); then the adjustments: kind, whether it is a refund (0),
-- an overdraft (1) or a charge of a request that did not pass after all (2), which counter, the charge's stamp (in multiples of 2^26, and the rest: it may pass
-- 2^53), the amount, length of its numbers, its numbers.

local is_reservation, counter_count, adjustment_count, at = struct.unpack('>BI2I2', blob)
local states, fresh_at, pieces = {}, {}, {}
for counter = 1, counter_count do
  states[counter] = redis.call('GET', KEYS[counter])
end

if is_reservation == 1 then
  local open = redis.call('GET', KEYS[counter_count + 1])
  if not open then
    return 'absent'
  elseif #open ~= 8 then
    corrupt('reservation')
  elseif now >= struct.unpack('>d', open) then
    return 'absent'
  end
end

for adjustment = 1, adjustment_count do
  local kind, what, counter, stamp_high, stamp_low, amount, size
  kind, what, counter, stamp_high, stamp_low, amount, size, at =
    struct.unpack('>BBI2dddI2', blob, at)
  local tokens, next, fresh
  -- One that was emptied a moment ago is as if it were absent.
  local state = states[counter] ~= '' and states[counter]
  if what == 1 then
    tokens, next, fresh = overdraws[kind](state, amount, at)
  else
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
if is_reservation == 1 then
  redis.call('DEL', KEYS[counter_count + 1])
end
for counter = 1, counter_count do
  if fresh_at[counter] then
    save(KEYS[counter], states[counter], fresh_at[counter])
  end
end
return table.concat(pieces)
