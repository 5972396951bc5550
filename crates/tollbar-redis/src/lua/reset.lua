-- Makes a counter fresh, in such a way that nothing charged before can be given back: the twin of
-- `close_refunds` in memory/settling.rs. The blob is the kind of its policy (1 byte).

local is_known, state, fresh_at = pcall(function()
  return resets[struct.unpack('>B', blob)](redis.call('GET', KEYS[1]))
end)
-- A state that no policy of this kind has written goes, whatever it is.
save(KEYS[1], is_known and state or '', fresh_at)
return ''
