-- {in progress, unknown, succeeded, failed, unreadable} of the keys that are not past retention.
local counts = {0, 0, 0, 0, 0}
for _, name in ipairs(KEYS) do
  local r, there = head(name)
  local place
  if r and not past_retention(r) then
    place = r.state + 2
    if r.state == IN_PROGRESS and now < r.lease_until then place = 1 end
  elseif there and not r then
    place = 5
  end
  if place then counts[place] = counts[place] + 1 end
end
return counts
