-- Include: give_back
-- Exports: TRIP_FIRST_MS set_trip judge_probe expire_lease reap_lease end_overdue reap_overdue
-- How a lease ends without its holder's release, and what a probe's end says of its node.
local TRIP_FIRST_MS = 10000
local TRIP_MAX_MS = 300000

local function set_trip(node_id, node, why, by, backoff_ms)
  local reopen_at = now + backoff_ms
  append('NodeTripped', 1, nil, nil, '{"node_id":' .. json_text(node_id)
    .. ',"why":' .. json_text(why) .. ',"by":' .. json_text(by)
    .. ',"reopen_at_ms":' .. json_int(reopen_at) .. ',"backoff_ms":' .. json_int(backoff_ms) .. '}')
  redis.call('HSET', trips_key, node_id, '{"why":' .. json_text(why) .. ',"by":' .. json_text(by)
    .. ',"since_ms":' .. json_int(now) .. ',"reopen_at_ms":' .. json_int(reopen_at)
    .. ',"backoff_ms":' .. json_int(backoff_ms) .. '}')
  node.trip = { reopen = reopen_at, backoff = backoff_ms }
  touch_use(node_id)
end

-- What the end of a probe says of its node.
local function judge_probe(lease, how, node)
  if not node or not node.trip or node.trip.probe ~= lease.lease_id then
    return
  end
  if how == 'completed' then
    append('NodeRestored', 1, nil, lease.token, '{"node_id":' .. json_text(lease.node_id)
      .. ',"by":' .. json_text(lease.holder) .. '}')
    redis.call('HDEL', trips_key, lease.node_id)
    node.trip = nil
    free_something()
  elseif how == 'cancelled' then
    node.trip.probe = nil
  else
    set_trip(lease.node_id, node, 'probe_' .. how, lease.holder,
      math.min(TRIP_MAX_MS, node.trip.backoff * 2))
  end
  touch_use(lease.node_id)
end

local function keep_draining(lease, drain_ms)
  redis.call('HSET', drains_key, lease.lease_id, '{"node_id":' .. json_text(lease.node_id)
    .. ',"key":' .. json_text(lease.key) .. ',"weight":' .. json_int(lease.weight_bytes)
    .. ',"params":' .. json_int(lease.params) .. ',"ended_at_ms":' .. json_int(now)
    .. ',"until_ms":' .. json_int(now + drain_ms) .. '}')
end

local function expire_lease(lease, deadline_ms)
  local node = vacate(lease, lease.drain_ms)
  append('LeaseExpired', 1, nil, lease.token, '{"lease_id":' .. json_text(lease.lease_id)
    .. ',"node_id":' .. json_text(lease.node_id) .. ',"request_key":' .. json_text(lease.request_key)
    .. ',"held_ms":' .. json_int(math.max(0, now - lease.acquired_at_ms))
    .. ',"deadline_ms":' .. json_int(deadline_ms) .. '}')
  forget_lease(lease, lease.request_key, 'expired', nil)
  keep_draining(lease, lease.drain_ms)
  judge_probe(lease, 'expired', node)
end

local function reap_lease(lease, why, by, drain_ms)
  local node = vacate(lease, drain_ms)
  append('LeaseReaped', 1, nil, lease.token, '{"lease_id":' .. json_text(lease.lease_id)
    .. ',"node_id":' .. json_text(lease.node_id) .. ',"request_key":' .. json_text(lease.request_key)
    .. ',"held_ms":' .. json_int(math.max(0, now - lease.acquired_at_ms))
    .. ',"why":' .. json_text(why) .. ',"by":' .. json_text(by)
    .. ',"drained":' .. json_bool(drain_ms ~= nil) .. '}')
  forget_lease(lease, lease.request_key, 'reaped', nil)
  if drain_ms then
    keep_draining(lease, drain_ms)
  end
  judge_probe(lease, 'reaped', node)
end

-- A lease whose time is over ends: expired, or reaped where an operator had revoked it.
local function end_overdue(lease_id, deadline_ms)
  local lease = lease_of(lease_id)
  if not lease then
    redis.call('ZREM', deadlines_key, lease_id)
    return nil
  end
  local revoked = redis.call('HGET', marks_key, 'revoked|' .. lease_id)
  if revoked then
    local mark = cjson.decode(revoked)
    reap_lease(lease, mark.why, mark.by, lease.drain_ms)
    return 'reaped'
  end
  expire_lease(lease, deadline_ms)
  return 'expired'
end

-- Ends at most so many leases whose deadline passed.
local function reap_overdue(most)
  local due = redis.call('ZRANGE', deadlines_key, '-inf', int_text(now), 'BYSCORE', 'LIMIT', 0, most,
    'WITHSCORES')
  local expired, reaped = 0, 0
  for i = 1, #due, 2 do
    local how = end_overdue(due[i], tonumber(due[i + 1]))
    expired = expired + (how == 'expired' and 1 or 0)
    reaped = reaped + (how == 'reaped' and 1 or 0)
  end
  return expired, reaped
end
