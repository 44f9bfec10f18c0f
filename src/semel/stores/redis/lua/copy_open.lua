-- A ticket for each key: 1 if it was put, 0 if there is something already. ARGV[2] is for how long.
local opened = {}
for n, name in ipairs(KEYS) do
  opened[n] = redis.call('SET', name, ARGV[n + 2], 'NX', 'PX', ARGV[2]) and 1 or 0
end
return opened
