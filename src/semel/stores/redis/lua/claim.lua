-- fingerprint, lease_ms, retention_ms, takeover -> {attempt, lease_until} if granted, else what is there.
local function step(name, frames, owners)
  local lease_ms, retention_ms, takeover = struct.unpack('>I8I8B', calls, last - 16)
  local ends = last - 17 -- of the fingerprint
  if value and past_retention() then value = nil end
  if value then
    if state ~= IN_PROGRESS then return value end
    local same = string.sub(calls, at, ends) == string.sub(value, rest - fingerprint_size, rest - 1)
    if same and mine then return {attempt, lease_until} end
    local lapsed = now >= lease_until
    if not (same and lapsed and takeover == 1) then return value end
    attempt = attempt + 1
    wake(name)
  else
    state, attempt, created, refuse = IN_PROGRESS, 1, now, 0
  end
  frame_size, owner_size, fingerprint_size = frames, owners, ends - at + 1
  lease_until, expires = now + lease_ms, now + retention_ms
  put(name, string.sub(calls, start, ends), '')
  return {attempt, lease_until}
end
