local function past_retention()
  return now >= expires + refuse and now >= lease_until
end
