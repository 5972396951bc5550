-- Calendar windows: the twin of algorithm/calendar_window.rs. The caller, who has a calendar, sends
-- four boundaries around its own present; which window it is, the clock of the server says.

local function calendar_end(first, second, third, last)
  if now < first or now >= last then
    -- The caller's clock is off by more than a window. It asks again, with the right boundaries.
    error('TOLLBARCLOCK ' .. string.format('%.0f', now) .. ' ')
  elseif now < second then
    return second
  elseif now < third then
    return third
  end
  return last
end

steps[3] = function(state, cost, at)
  local limit, first, second, third, last = struct.unpack('>ddddd', blob, at)
  return count_in_window(state, limit, calendar_end(first, second, third, last), cost)
end

if refunds then
  refunds[3] = function(state, stamp_high, stamp_low, amount)
    return refund_in_window(state, stamp_high + stamp_low, amount)
  end

  overdraws[3] = function(state, amount, at)
    local _, first, second, third, last = struct.unpack('>ddddd', blob, at)
    return overdraw_in_window(state, amount, calendar_end(first, second, third, last))
  end
end
