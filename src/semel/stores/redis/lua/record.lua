-- What every script begins with: the time, and records as they are stored (layout.py has the same layout).
-- ARGV[1] is the time in milliseconds, or empty: then it is the server's.
local VERSION, IN_PROGRESS, NOBODY = 1, 0, ''
local HEAD = '>BBI4I8I8I8I8I8I1c0I1c0I2c0'
local SLACK_MS = 3600000 -- TTL only collects garbage; until then the times in the record decide
local REPLY_MAX = 4194304 -- bytes; what does not fit any more is asked for again

local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

-- The record in `value`, or nil if it is another key's (when `frame` is given) or was not written in this form.
local function parse(value, frame)
  local ok, version, state, attempt, created, lease_until, expires, completed, refuse, owner, fingerprint, key, rest =
    pcall(struct.unpack, HEAD, value)
  if not ok or version ~= VERSION or key ~= (frame or key) then return nil end
  return {
    state = state, attempt = attempt, created = created, lease_until = lease_until, expires = expires,
    completed = completed, refuse = refuse, owner = owner, fingerprint = fingerprint, frame = key, answer = string.sub(value, rest),
  }
end

-- Only what the scanning scripts look at, without the answer; the second value says whether there is anything at all.
local function head(name)
  local value = redis.pcall('GETRANGE', name, 0, 45)
  if value == '' then return nil, false end
  local ok, version, state, _, _, lease_until, expires, _, refuse = pcall(struct.unpack, '>BBI4I8I8I8I8I8', value)
  if not ok or version ~= VERSION then return nil, true end
  return {state = state, lease_until = lease_until, expires = expires, refuse = refuse}, true
end

local function put(name, r)
  local value = struct.pack(HEAD, VERSION, r.state, r.attempt, r.created, r.lease_until, r.expires, r.completed,
    r.refuse, #r.owner, r.owner, #r.fingerprint, r.fingerprint, #r.frame, r.frame) .. r.answer
  local ttl_ms = math.max(r.expires + r.refuse, r.lease_until) - now + SLACK_MS
  redis.call('SET', name, value, 'PX', string.format('%d', ttl_ms)) -- formatting here is cheaper than Redis's conversion
end

local function holds(r, owner)
  return r.state == IN_PROGRESS and r.owner == owner
end

local function past_retention(r)
  return now >= r.expires + r.refuse and now >= r.lease_until
end

local function finish(r, state, answer, retention_ms, refuse_ms)
  r.state, r.answer, r.refuse = state, answer, refuse_ms
  r.completed, r.lease_until, r.expires = now, now, now + retention_ms
end

-- Tell those who wait for the record; the channel is named like its key.
local function wake(name)
  redis.call('PUBLISH', name, '')
end

-- Run `step(name, record, call, at, value)` for each key. ARGV[n + 1] is the call: the key's frame, and from `at` on what the step reads.
-- Replies: false, a number, a table, or a value as it is stored, which is also how a record that cannot be read is told.
local function each(step)
  local replies, size = {now}, 0
  for n, name in ipairs(KEYS) do
    local call = ARGV[n + 1]
    local frame, at = struct.unpack('>I2c0', call)
    local value = redis.call('GET', name)
    local record = value and parse(value, frame)
    local reply
    if value and not record then reply = value else reply = step(name, record, call, at, value) end
    replies[n + 1] = reply
    if type(reply) == 'string' then
      size = size + #reply
      if size > REPLY_MAX then break end
    end
  end
  return replies
end
