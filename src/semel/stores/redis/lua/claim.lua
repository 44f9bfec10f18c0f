-- fingerprint, owner, lease_ms, retention_ms, takeover -> {attempt, lease_until} if granted, else what is there.
return each(function(name, r, call, at, value)
  local fingerprint, owner, lease_ms, retention_ms, takeover = struct.unpack('>I1c0I1c0I8I8B', call, at)
  if r and past_retention(r) then r = nil end
  if r then
    local same = r.fingerprint == fingerprint
    if same and holds(r, owner) then return {r.attempt, r.lease_until} end
    local lapsed = r.state == IN_PROGRESS and now >= r.lease_until
    if not (same and lapsed and takeover == 1) then return value end
    r.attempt = r.attempt + 1
    wake(name)
  else
    local frame = struct.unpack('>I2c0', call)
    r = {state = IN_PROGRESS, attempt = 1, created = now, completed = 0, refuse = 0, fingerprint = fingerprint, frame = frame, answer = ''}
  end
  r.owner, r.lease_until, r.expires = owner, now + lease_ms, now + retention_ms
  put(name, r)
  return {r.attempt, r.lease_until}
end)
