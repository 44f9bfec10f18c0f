-- owner -> 1 if the key was given back. A later attempt leaves the earlier one's unknown outcome behind.
return each(function(name, r, call, at)
  local owner = struct.unpack('>I1c0', call, at)
  if not r or not holds(r, owner) then return 0 end
  if r.attempt == 1 then
    redis.call('DEL', name)
  else
    r.owner, r.lease_until = NOBODY, now
    put(name, r)
  end
  wake(name)
  return 1
end)
