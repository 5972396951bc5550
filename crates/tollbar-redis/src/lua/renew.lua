-- Renews a lease: answers until when it is held now, or 0 where it is not.
--
-- The blob: the kind of its policy (1 byte), the lease's name in two parts, and the numbers of its policy.

local kind, stamp_high, stamp_low, at = struct.unpack('>Bdd', blob)
local renewed_until, next, fresh_at =
  renews[kind](redis.call('GET', KEYS[1]), stamp_high, stamp_low, at)
if next then
  save(KEYS[1], next, fresh_at)
end
return struct.pack('>d', renewed_until)
