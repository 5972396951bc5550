-- The probe of a server. Its two calls run every command that the other scripts run, on a key of their own.
-- The blob is one byte: 0 writes the key and reads it; 1 finds that it has expired, and 2 also runs what
-- only the scripts of a cluster run.
--
-- The first write must be a `SET`: a server that is full, or has too few replicas, refuses the first write
-- of a script that needs room, and lets those behind it pass.

local LIFE_MS = 1

local part = struct.unpack('>B', blob)
if part == 0 then
  local written = struct.pack('>d', now)
  redis.call('SET', KEYS[1], written, 'PX', LIFE_MS)
  return redis.call('GET', KEYS[1]) == written and '' or 'unread'
end
local found = redis.call('GET', KEYS[1])
redis.call('DEL', KEYS[1])
if part == 2 then
  -- What takes away comes first, so that nothing stays where a command is refused.
  redis.call('HGET', KEYS[1], 'field')
  redis.call('HLEN', KEYS[1])
  redis.call('HDEL', KEYS[1], 'field')
  redis.call('ZRANGEBYSCORE', KEYS[1], 0, 1)
  redis.call('ZREM', KEYS[1], 'member')
  redis.call('HSET', KEYS[1], 'field', '')
  redis.call('DEL', KEYS[1])
  redis.call('ZADD', KEYS[1], 1, 'member')
  redis.call('DEL', KEYS[1])
end
return found and 'unexpired' or ''
