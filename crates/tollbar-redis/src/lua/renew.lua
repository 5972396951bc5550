-- Renews a lease: answers until when it is held now, or nothing where it is not.
--
-- The blob: the lease's name in two parts, and the numbers of its policy.

local high, low, _, ttl = struct.unpack('>dddd', blob)
local state = redis.call('GET', KEYS[1])
local newest, count = load_leases(state)
local renewed_until = 0
local kept, last_end = alter_leases(state, count, function(id, ends_at, permits)
  if id == high + low then
    renewed_until = now + ttl
    return renewed_until, permits
  end
  return ends_at, permits
end)
if renewed_until > 0 or #kept < count then
  save(KEYS[1], pack_leases(newest, kept), last_end)
end
return struct.pack('>d', renewed_until)
