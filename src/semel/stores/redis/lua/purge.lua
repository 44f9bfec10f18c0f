-- limit -> how many of the keys were past retention and are gone, or are only refused and lost their results; at most
-- `limit`. Looks again, so a claim meanwhile is safe.
local gone, limit = 0, tonumber(ARGV[2])
for _, name in ipairs(KEYS) do
  if gone == limit then break end
  local r = head(name)
  if r and past_retention(r) then
    redis.call('DEL', name)
    gone = gone + 1
  elseif r and r.refuse > 0 and now >= r.expires then
    r = parse(redis.call('GET', name))
    r.answer, r.expires, r.refuse = '', r.expires + r.refuse, 0
    put(name, r)
    gone = gone + 1
  end
end
return gone
