-- lease_ms -> {attempt, lease_until}, or false if the lease is not the owner's any more.
local function step(name)
  if not value or not (mine and state == IN_PROGRESS) then return false end
  lease_until = now + struct.unpack('>I8', calls, at)
  put(name, string.sub(value, HEAD_SIZE + 1), '')
  return {attempt, lease_until}
end
