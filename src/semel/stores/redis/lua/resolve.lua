-- owner, attempt, state, retention_ms, answer -> 1 if the lapsed attempt was ended; state 0: nothing was done.
return each(function(name, r, call, at)
  local owner, attempt, state, retention_ms, answer = struct.unpack('>I1c0I8BI8', call, at)
  local lapsed = r and r.state == IN_PROGRESS and now >= r.lease_until
  if not lapsed or r.attempt ~= attempt or r.owner ~= owner then return 0 end
  if state == IN_PROGRESS then
    redis.call('DEL', name)
  else
    finish(r, state, string.sub(call, answer), retention_ms, 0)
    r.owner = NOBODY
    put(name, r)
  end
  wake(name)
  return 1
end)
