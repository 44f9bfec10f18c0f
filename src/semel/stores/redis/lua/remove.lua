-- owner, attempt, created, completed (0: in progress), expire -> 1 if that record was there, and is gone or expired.
return each(function(name, r, call, at)
  local owner, attempt, created, completed, expire = struct.unpack('>I1c0I8I8I8B', call, at)
  if not r or r.attempt ~= attempt or r.owner ~= owner then return 0 end
  if r.created ~= created or r.completed ~= completed then return 0 end
  if expire == 1 then
    if r.state == IN_PROGRESS then return 0 end
    r.expires = math.min(r.expires, now)
    put(name, r)
    return 1
  end
  if now < r.lease_until then return 0 end
  redis.call('DEL', name)
  wake(name)
  return 1
end)
