-- attempt, created, completed (0: in progress), expire -> 1 if that record was there, and is gone or expired.
local function step(name)
  local seen, begun, completed, expire = struct.unpack('>I8I8I8B', calls, at)
  if not value or attempt ~= seen or not mine then return 0 end
  local finished = state ~= IN_PROGRESS
  if created ~= begun or (finished and lease_until or 0) ~= completed then return 0 end
  if expire == 1 then
    if not finished then return 0 end
    expires = math.min(expires, now)
    put(name, string.sub(value, HEAD_SIZE + 1), '')
    return 1
  end
  if now < lease_until then return 0 end
  redis.call('DEL', name)
  wake(name)
  return 1
end
