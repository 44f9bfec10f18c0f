-- attempt, state, retention_ms, answer -> 1 if the lapsed attempt was ended; state 0: nothing was done.
local function step(name)
  local seen, code, retention_ms, answer = struct.unpack('>I8BI8I2', calls, at)
  local lapsed = value and state == IN_PROGRESS and now >= lease_until
  if not lapsed or attempt ~= seen or not mine then return 0 end
  if code == IN_PROGRESS then
    redis.call('DEL', name)
  else
    finish(code, retention_ms, 0)
    put(name, disowned(), ARGV[answer])
  end
  wake(name)
  return 1
end
