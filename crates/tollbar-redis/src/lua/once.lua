-- What is remembered of a request with an id: its fingerprint (8 bytes), until when it is remembered (a double), how
-- often it was answered again (1 byte), and the answers of its entries (50 bytes each).

-- Answers such a request again, and counts that: 'A', until when it is remembered (a double), and the answers. 'reused'
-- where the id is that of another request; nothing where the request is to be decided: it is new, or was answered again
-- too often.
local function replay(once_key, fingerprint, replays_max)
  local answered = redis.call('GET', once_key)
  if not answered or #answered % 50 == 16 then
    -- Without a count: a version that bound ids to less has written it.
    return nil
  elseif #answered % 50 ~= 17 then
    corrupt('request')
  end
  local before, remembered_until, replays, from = struct.unpack('>c8dB', answered)
  if now >= remembered_until then
    return nil
  elseif before ~= fingerprint then
    return 'reused'
  elseif replays >= replays_max then
    return nil
  end
  local answers = string.sub(answered, from)
  local head = struct.pack('>c8dB', fingerprint, remembered_until, replays + 1)
  save(once_key, head .. answers, KEEP)
  return 'A' .. struct.pack('>d', remembered_until) .. answers
end

local function remember(once_key, fingerprint, once_ttl, answers)
  local remembered_until = math.min(now + once_ttl, NUMBER_MAX)
  local head = struct.pack('>c8dB', fingerprint, remembered_until, 0)
  save(once_key, head .. answers, remembered_until)
end

