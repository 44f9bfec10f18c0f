-- -> 1 if the key was given back. A later attempt leaves the earlier one's unknown outcome behind.
local function step(name)
  if not value or not (mine and state == IN_PROGRESS) then return 0 end
  if attempt == 1 then
    redis.call('DEL', name)
  else
    lease_until = now
    put(name, disowned(), '')
  end
  wake(name)
  return 1
end
