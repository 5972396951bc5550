-- Fixed and staggered windows: the twins of algorithm/fixed_window.rs and staggered_window.rs. The
-- caller says by how much the windows of the key are staggered; 0 for those that are not.

local function fixed_end(length, stagger)
  if now < stagger then
    return stagger
  end
  return stagger + (math.floor((now - stagger) / length) + 1) * length
end

steps[2] = function(state, cost, at)
  local limit, length, stagger = struct.unpack('>ddd', blob, at)
  return count_in_window(state, limit, fixed_end(length, stagger), cost)
end

if holds then
  holds[2] = hold_window
end

if refunds then
  refunds[2] = refund_in_window

  overdraws[2] = function(state, amount, at)
    local _, length, stagger = struct.unpack('>ddd', blob, at)
    return overdraw_in_window(state, amount, fixed_end(length, stagger))
  end
end
