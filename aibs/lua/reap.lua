-- Ends what time has ended: leases past their deadline, revoked ones that fell due, waiters whose
-- process fell silent, tombstones, and windows of counted denials. Bounded; `more` is 1 when a
-- further call would find something.
-- Flags: allow-oom
-- Include: pool deny wait step
-- Keys: pool owner log leases deadlines drains requests ended_until capacity open trips lanes waiters heads reservations reserved queue_high queue_normal queue_low places tried counts denials marks
-- Args: actor staleness_ms:int swap_min_ms:int swap_max_ms:int
-- Replies: ok pool_missing pool_version
-- Events: LeaseExpired LeaseReaped WaitEnded ReservationEnded DenialsCounted NodeTripped NodeRestored ClockStepped PoolSuspect PoolReopened OwnerExpired
local REAP_MAX = 64
local TOMBSTONES_MAX = 256

local refusal = read_pool()
if refusal then
  return refusal
end
clamp_deadlines()
local expired, reaped = reap_overdue(REAP_MAX)
local forgotten = sweep_places(REAP_MAX)

local gone = redis.call('ZRANGE', ended_until_key, '-inf', int_text(now), 'BYSCORE', 'LIMIT', 0,
  TOMBSTONES_MAX)
if #gone > 0 then
  for _, request_key in ipairs(gone) do
    local line = redis.call('HGET', requests_key, request_key)
    -- The same request may have come again since.
    if line and string.sub(line, 1, 6) == 'ended ' then
      redis.call('HDEL', requests_key, request_key)
    end
  end
  redis.call('ZREM', ended_until_key, unpack(gone))
end

local windows = redis.call('HGETALL', denials_key)
for i = 1, #windows, 2 do
  local since = tonumber(string.match(windows[i + 1], '^(%d+) '))
  if now - since >= DENIAL_WINDOW_MS or now < since then
    count_denials(windows[i], windows[i + 1])
    redis.call('HDEL', denials_key, windows[i])
  end
end

local drains = redis.call('HGETALL', drains_key)
for i = 2, #drains, 2 do
  -- Read for its own sake: a drain that is over is settled when its node is.
  load_node(cjson.decode(drains[i]).node_id)
end
-- A drain whose node left the fleet has nothing to give back.
for i = 1, #drains, 2 do
  local drain = cjson.decode(drains[i + 1])
  local node = load_node(drain.node_id)
  local known = false
  for _, held in ipairs(node and node.drains or {}) do
    known = known or held.id == drains[i]
  end
  if not known then
    redis.call('HDEL', drains_key, drains[i])
  end
end
flush_nodes()
local more = expired + reaped >= REAP_MAX or forgotten >= REAP_MAX
return { 'ok', int_text(now), int_text(expired), int_text(reaped), int_text(forgotten),
  more and '1' or '0' }
