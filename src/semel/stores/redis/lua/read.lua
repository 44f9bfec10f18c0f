-- The values as they are stored, and the time; the reader decides what is still owed.
local replies, size = {now}, 0
for n, name in ipairs(KEYS) do
  local value = redis.pcall('GET', name) -- what holds no string is the failure of one caller
  replies[n + 1] = value
  size = size + #(value or '')
  if size > REPLY_MAX then break end
end
return replies
