-- The body of the record at hand, which is in nobody's hands from now on.
local function disowned()
  local frame = string.sub(value, HEAD_SIZE + 1, HEAD_SIZE + frame_size)
  owner_size = 0
  return frame .. string.sub(value, rest - fingerprint_size, rest - 1)
end
