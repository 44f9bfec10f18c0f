local function finish(code, retention_ms, refuse_ms)
  state, refuse = code, refuse_ms
  lease_until, expires = now, now + retention_ms
end
