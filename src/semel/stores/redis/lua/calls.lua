-- The calls: ARGV[2] holds them, one for each key: the size, the sizes of frame and owner, these two as they are stored,
-- and from `at` to `last` what the script's `step` reads. Answers are further arguments, known by their numbers.
local CALL, CALL_SIZE = '>I4I2B', 7
local calls = ARGV[2]

-- The call at hand: where it is, and whether its owner is that of the record.
local start, at, last, mine

-- Tell those who wait for the record; the channel is named like its key.
local function wake(name)
  redis.call('PUBLISH', name, '')
end
