-- state, retention_ms, refuse_ms, answer -> 1 if the result, or an earlier one of the same owner, is kept.
local function step(name)
  if not value or not mine then return 0 end
  if state == IN_PROGRESS then
    local code, retention_ms, refuse_ms, answer = struct.unpack('>BI8I8I2', calls, at)
    finish(code, retention_ms, refuse_ms)
    put(name, string.sub(value, HEAD_SIZE + 1, rest - 1), ARGV[answer])
    wake(name)
  end
  return 1
end
