-- One request under several policies, each with a counter of its own, charged all or none: what most
-- requests of several limits are. It decides as many.lua does, without a table.
--
-- The blob: the number of entries (2 bytes), and the entries: kind, role, cost, length of its numbers,
-- its numbers. Entry by entry the counters are read on the way down, and written on the way back, when
-- it is known whether all allow; so whatever is wrong with one is found before any is written.

local SHADOW = 1

local entry_count, first_at = struct.unpack('>I2', blob)

-- The answers of the entries from `entry` on, and whether the request passes. `is_allowed` says whether
-- those before it do.
local function decide(entry, at, is_allowed)
  if entry > entry_count then
    return '', is_allowed
  end
  local kind, role, cost, size
  kind, role, cost, size, at = struct.unpack('>BBdI2', blob, at)
  local step, key = steps[kind], KEYS[entry]
  local state = redis.call('GET', key)
  local outcome, remaining, reset_at, retry_after, next, fresh_at, stamp, height,
    delay, stamp_low = step(state, cost, at)
  local rest
  rest, is_allowed =
    decide(entry + 1, at + size, is_allowed and (outcome == ALLOW or role == SHADOW))
  if is_allowed then
    if next then
      save(key, next, fresh_at)
    end
  elseif outcome == ALLOW then
    -- Nothing is taken from it: it says what remains now.
    local _
    outcome, remaining, reset_at, retry_after, _, _, _, height, delay = step(state, 0, at)
  end
  local answer = struct.pack('>BdddBddd', outcome, remaining, reset_at, retry_after, height or 0,
    delay or 0, stamp, stamp_low or 0)
  return answer .. rest, is_allowed
end

return (decide(1, first_at, true))
