-- What every script begins with: the time, and records as they are stored (layout.py has the same layout).
-- ARGV[1] is the time in milliseconds, or empty: then it is the server's.
local VERSION, IN_PROGRESS = 1, 0
local HEAD, HEAD_SIZE = '>BBI4I6I6I6I5I2BB', 33
local SLACK_MS = 3600000 -- TTL only collects garbage; until then the times in the record decide
local REPLY_MAX = 4194304 -- bytes; what does not fit any more is asked for again

local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

-- The record at hand; its answer begins at `rest`. Not a table, and no strings that nobody asks for: Lua hashes every
-- byte of a new string. A script has only the functions that it needs, because they are made anew in every run.
local value, state, attempt, created, lease_until, expires, refuse, frame_size, owner_size, fingerprint_size, rest

-- Take a record, or the head of one, into hand. False if it was not written in this form.
local function take(found)
  local ok, version
  value = found
  ok, version, state, attempt, created, lease_until, expires, refuse, frame_size, owner_size, fingerprint_size =
    pcall(struct.unpack, HEAD, found)
  if not ok or version ~= VERSION then return false end
  rest = HEAD_SIZE + frame_size + owner_size + fingerprint_size + 1
  return true
end

local last_ttl_ms, last_ttl
local function put(name, body, answer)
  local head = struct.pack(HEAD, VERSION, state, attempt, created, lease_until, expires, refuse,
    frame_size, owner_size, fingerprint_size)
  local ttl_ms = math.max(expires + refuse, lease_until) - now + SLACK_MS
  if ttl_ms ~= last_ttl_ms then -- most of a batch have the same; formatting here is cheaper than Redis's conversion
    last_ttl_ms, last_ttl = ttl_ms, string.format('%d', ttl_ms)
  end
  redis.call('SET', name, head .. body .. answer, 'PX', last_ttl)
end
