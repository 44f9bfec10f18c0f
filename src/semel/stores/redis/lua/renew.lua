-- owner, lease_ms -> {attempt, lease_until}, or false if the lease is not the owner's any more.
return each(function(name, r, call, at)
  local owner, lease_ms = struct.unpack('>I1c0I8', call, at)
  if not r or not holds(r, owner) then return false end
  r.lease_until = now + lease_ms
  put(name, r)
  return {r.attempt, r.lease_until}
end)
