-- Calendar windows: the twin of algorithm/calendar_window.rs and of its calendar, civil.rs.

local DAY = 86400000000

-- The first day of the month after the one that `day` is in; both since 1970. Years begin in March, so
-- that the leap day comes last, and 400 of them are an era of 146,097 days.
local function next_month(day)
  local from_era_0 = day + 719468
  local era = math.floor(from_era_0 / 146097)
  local day_of_era = from_era_0 - era * 146097
  local year = math.floor((day_of_era - math.floor(day_of_era / 1460)
    + math.floor(day_of_era / 36524) - math.floor(day_of_era / 146096)) / 365)
  local year_start = 365 * year + math.floor(year / 4) - math.floor(year / 100)
  local month = math.floor((5 * (day_of_era - year_start) + 2) / 153)
  local next_start
  if month < 11 then
    next_start = year_start + math.floor((153 * (month + 1) + 2) / 5)
  else
    year = year + 1
    next_start = 365 * year + math.floor(year / 4) - math.floor(year / 100) + math.floor(year / 400)
  end
  return era * 146097 + next_start - 719468
end

-- `period` is 0 for days, 1 for weeks, 2 for months; `offset` is how far midnight is east of UTC.
local function calendar_end(period, offset)
  local day = math.floor((now + offset) / DAY)
  local next_first
  if period == 0 then
    next_first = day + 1
  elseif period == 1 then
    -- 1970-01-01 was a Thursday, three days after a Monday.
    next_first = day - (day + 3) % 7 + 7
  else
    next_first = next_month(day)
  end
  return math.max(next_first * DAY - offset, 0)
end

steps[3] = function(state, cost, at)
  local limit, period, offset = struct.unpack('>ddd', blob, at)
  return count_in_window(state, limit, calendar_end(period, offset), cost)
end

if holds then
  holds[3] = hold_window
end

if refunds then
  refunds[3] = refund_in_window

  overdraws[3] = function(state, amount, at)
    local _, period, offset = struct.unpack('>ddd', blob, at)
    return overdraw_in_window(state, amount, calendar_end(period, offset))
  end
end
