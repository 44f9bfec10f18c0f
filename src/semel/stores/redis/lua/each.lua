-- Answer each call. Replies: false, a number, a table, an error (which is that caller's alone), or a value as it is
-- stored, which is also how a record that cannot be read is told.
local function answer(name, frames, owners)
  local found = redis.call('GET', name)
  if found then
    if not take(found) or #found < rest - 1 then return found end
    local whose = string.sub(calls, start, at - 1)
    mine = frame_size == frames and owner_size == owners and string.sub(found, HEAD_SIZE + 1, HEAD_SIZE + #whose) == whose
    local framed = mine or string.sub(found, HEAD_SIZE + 1, HEAD_SIZE + frame_size) == string.sub(whose, 1, frames)
    if not framed then return found end
  else
    value = nil
  end
  return step(name, frames, owners)
end

local replies, size, from = {now}, 0, 1
for n, name in ipairs(KEYS) do
  local length, frames, owners = struct.unpack(CALL, calls, from)
  start = from + CALL_SIZE
  at, last = start + frames + owners, from + length - 1
  local ok, reply = pcall(answer, name, frames, owners)
  if not ok and type(reply) ~= 'table' then reply = {err = reply} end
  replies[n + 1] = reply
  from = last + 1
  if type(reply) == 'string' then
    size = size + #reply
    if size > REPLY_MAX then break end
  end
end
return replies
