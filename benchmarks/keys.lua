-- For wrk: a new key for each request, one of some known keys, always the same one, or none.
-- wrk -s keys.lua URL -- new|known|same|none PATH PREFIX COUNT

local body = '{"amount": 10}'
local mode, head, prefix, count
local number = 0

function init(args)
  mode, prefix, count = args[1], args[3], tonumber(args[4])
  head = "POST " .. args[2] .. " HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n" ..
         "Content-Length: " .. #body .. "\r\n"
end

function request()
  if mode == "none" then
    return head .. "\r\n" .. body
  end
  number = number + 1
  local n = number
  if mode == "known" then
    n = number % count
  elseif mode == "same" then
    n = 0
  end
  return head .. string.format("Idempotency-Key: %s-%012x\r\n\r\n", prefix, n) .. body
end

function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format(
    '\n{"requests": %d, "seconds": %f, "refused": %d, "broken": %d, "p50_us": %f, "p99_us": %f}\n',
    summary.requests, summary.duration / 1e6, errors.status,
    errors.connect + errors.read + errors.write + errors.timeout,
    latency:percentile(50), latency:percentile(99)))
end
