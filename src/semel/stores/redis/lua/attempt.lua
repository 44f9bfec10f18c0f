-- How often a handler failed on a message: ARGV[2] is for how long that is remembered, ARGV[3] the last error. A hash
-- of its own, whose name no scan of records matches. Returns the count with this failure.
local retention = tonumber(ARGV[2])
local found = redis.call('HMGET', KEYS[1], 'count', 'expires')
local count = 1
if found[1] and tonumber(found[2]) > now then count = tonumber(found[1]) + 1 end
redis.call('HSET', KEYS[1], 'count', count, 'expires', string.format('%d', now + retention), 'error', ARGV[3])
redis.call('PEXPIRE', KEYS[1], string.format('%d', retention + SLACK_MS))
return count
