-- Exports: now
-- The one reading of the server's clock. Tests replace this part to step it.
local function server_now_ms()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

local now = server_now_ms()
