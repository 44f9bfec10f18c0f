-- A ticket, a copy and its life for each key: 1 if the ticket still stood there, and is the copy now.
local put = {}
for n, name in ipairs(KEYS) do
  local at = 3 * n - 1
  put[n] = 0
  if redis.call('GET', name) == ARGV[at] then
    redis.call('SET', name, ARGV[at + 1], 'PX', ARGV[at + 2])
    put[n] = 1
  end
end
return put
