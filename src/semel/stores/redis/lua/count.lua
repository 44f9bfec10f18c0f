-- {in progress, unknown, succeeded, failed, unreadable} of the keys that are not past retention.
local counts = {0, 0, 0, 0, 0}
for _, name in ipairs(KEYS) do
  local readable, there = look(name)
  local place
  if readable and not past_retention() then
    place = state + 2
    if state == IN_PROGRESS and now < lease_until then place = 1 end
  elseif there and not readable then
    place = 5
  end
  if place then counts[place] = counts[place] + 1 end
end
return counts
