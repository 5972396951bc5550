-- Leased permits: the twin of algorithm/leased.rs. The state is 'p', the newest name (7 bytes), and the
-- leases: name, end (7 bytes each) and permits (2).
--
-- Names go up, and begin where the clock is, so that none comes back for as long as somebody may hold it:
-- not even where the counter was gone in between.

local LEASE = 16

local function load_leases(state)
  if not state then
    return 0, 0
  end
  local count = (#state - 8) / LEASE
  if string.byte(state) ~= 112 or count < 0 or count ~= math.floor(count) then
    corrupt('lease')
  end
  return struct.unpack('>I7', state, 2), count
end

-- Those that have not ended, each as `change` leaves it (the end and the permits; none removes it); when
-- the last of them ends.
local function alter_leases(state, count, change)
  local kept, last_end = {}, 0
  for index = 1, count do
    local id, ends_at, permits = struct.unpack('>I7I7I2', state, 9 + (index - 1) * LEASE)
    if ends_at > now then
      ends_at, permits = change(id, ends_at, permits)
      if permits > 0 then
        kept[#kept + 1] = struct.pack('>I7I7I2', id, ends_at, permits)
        last_end = math.max(last_end, ends_at)
      end
    end
  end
  return kept, last_end
end

local function pack_leases(newest, kept)
  return struct.pack('>BI7', 112, newest) .. table.concat(kept)
end

steps[10] = function(state, cost, at)
  local limit, ttl = struct.unpack('>dd', blob, at)
  local newest, count = load_leases(state)
  local in_flight = 0
  local kept, last_end = alter_leases(state, count, function(_, ends_at, permits)
    in_flight = in_flight + permits
    return ends_at, permits
  end)
  local outcome, remaining = take_permits(limit, in_flight, cost)
  local next
  if outcome == ALLOW and cost > 0 then
    newest = math.max(newest + 1, now)
    kept[#kept + 1] = struct.pack('>I7I7I2', newest, now + ttl, cost)
    next, last_end = pack_leases(newest, kept), math.max(last_end, now + ttl)
  end
  return outcome, remaining, now, 0, next, last_end, newest
end

-- No leases. The newest name is kept until the clock has passed it, so that it does not come back.
if resets then
  resets[10] = function(state)
    local newest = load_leases(state)
    return pack_leases(newest, {}), newest + 1
  end
end

-- Until when the lease is held now; 0 where it has ended.
if renews then
  renews[10] = function(state, stamp_high, stamp_low, at)
    local _, ttl = struct.unpack('>dd', blob, at)
    local newest, count = load_leases(state)
    local renewed_until = 0
    local kept, last_end = alter_leases(state, count, function(id, ends_at, permits)
      if id == stamp_high + stamp_low then
        renewed_until = now + ttl
        return renewed_until, permits
      end
      return ends_at, permits
    end)
    if renewed_until == 0 and #kept == count then
      return 0
    end
    return renewed_until, pack_leases(newest, kept), last_end
  end
end

if refunds then
  refunds[10] = function(state, stamp_high, stamp_low, amount)
    local asked = stamp_high + stamp_low
    local newest, count = load_leases(state)
    local left = amount
    local kept, last_end = alter_leases(state, count, function(id, ends_at, permits)
      local back = 0
      if id == asked then
        back = math.min(permits, left)
        left = left - back
      end
      return ends_at, permits - back
    end)
    -- Those that have ended are struck out for good, also where nothing is given back: a clock that goes
    -- back does not bring them back.
    if left == amount and #kept == count then
      return 0
    end
    return amount - left, pack_leases(newest, kept), last_end
  end

  overdraws[10] = function()
    return 0
  end
end
