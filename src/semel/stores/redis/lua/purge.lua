-- limit -> how many of the keys were past retention and are gone, or are only refused and lost their results; at most
-- `limit`. Looks again, so a claim meanwhile is safe.
local gone, limit = 0, tonumber(ARGV[2])
for _, name in ipairs(KEYS) do
  if gone == limit then break end
  local readable = look(name)
  if readable and past_retention() then
    redis.call('DEL', name)
    gone = gone + 1
  elseif readable and refuse > 0 and now >= expires then
    take(redis.call('GET', name))
    if #value >= rest then
      expires, refuse = expires + refuse, 0
      put(name, string.sub(value, HEAD_SIZE + 1, rest - 1), '')
      gone = gone + 1
    end
  end
end
return gone
