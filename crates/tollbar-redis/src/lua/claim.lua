-- Claims a namespace for one secret, for as long as a process that has it comes back. The blob is the
-- fingerprint of the secret. Answers the fingerprint that the namespace belongs to.

local LIFE_MS = 15000

local owner = redis.call('GET', KEYS[1])
if owner and owner ~= blob then
  return owner
end
redis.call('SET', KEYS[1], blob, 'PX', LIFE_MS)
return blob
