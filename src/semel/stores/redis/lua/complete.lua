-- owner, state, retention_ms, refuse_ms, answer -> 1 if the result, or an earlier one of the same owner, is kept.
return each(function(name, r, call, at)
  local owner, state, retention_ms, refuse_ms, answer = struct.unpack('>I1c0BI8I8', call, at)
  if not r or r.owner ~= owner then return 0 end
  if r.state == IN_PROGRESS then
    finish(r, state, string.sub(call, answer), retention_ms, refuse_ms)
    put(name, r)
    wake(name)
  end
  return 1
end)
