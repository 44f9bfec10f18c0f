-- Take what the scanning scripts look at. The second reply says whether there is anything at all.
local function look(name)
  local found = redis.pcall('GETRANGE', name, 0, HEAD_SIZE - 1)
  return take(found), found ~= ''
end
