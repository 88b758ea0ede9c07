-- Ends a lease by its holder: completed, cancelled or failed. The same call again is the same
-- release; another one on a lease that is over is told, and logged, as late or double.
-- Flags: allow-oom
-- Include: pool lease turn
-- Keys: pool owner log leases deadlines drains requests ended_until capacity open trips lanes waiters heads queue_high queue_normal queue_low tried counts marks
-- Args: actor holder request_key lease_id token outcome call_id staleness_ms:int swap_min_ms:int swap_max_ms:int
-- Replies: ok duplicate late double unknown pool_missing pool_version
-- Events: LeaseReleased LeaseReaped LateRelease DoubleRelease NodeRestored NodeTripped PoolSuspect PoolReopened OwnerExpired
local refusal = read_pool()
if refusal then
  return refusal
end

local function tell_late(node_id, how)
  append('LateRelease', 1, nil, token, '{"lease_id":' .. json_text(lease_id) .. ',"token":'
    .. json_text(token) .. ',"node_id":' .. json_text(node_id) .. ',"ended_by":' .. json_text(how)
    .. ',"outcome":' .. json_text(outcome) .. '}')
end

local lease = lease_of(lease_id)
if not lease or lease.token ~= token then
  local ended = tombstone_of(redis.call('HGET', requests_key, request_key))
  if not ended or ended.lease_id ~= lease_id or ended.token ~= token then
    return { 'unknown', int_text(now) }
  end
  if ended.call_id == call_id then
    return { 'duplicate', int_text(now) }
  end
  local told = string.match(ended.how, '^(%a+)_told$')
  if ended.how == 'expired' or ended.how == 'reaped' then
    tell_late(nil, ended.how)
    -- Told once: the same call again is the same late release.
    tombstone(request_key, ended.hash, ended.how .. '_told', lease_id, token, call_id)
    told = ended.how
  end
  if told then
    return { 'late', int_text(now), told }
  end
  append('DoubleRelease', 1, nil, token, '{"lease_id":' .. json_text(lease_id) .. ',"token":'
    .. json_text(token) .. ',"node_id":null,"first_call_id":' .. json_text(ended.call_id)
    .. ',"call_id":' .. json_text(call_id) .. '}')
  return { 'double', int_text(now) }
end

local revoked = redis.call('HGET', marks_key, 'revoked|' .. lease_id)
local deadline_ms = tonumber(redis.call('ZSCORE', deadlines_key, lease_id))
if revoked then
  -- Its holder says that the work is over: nothing is left to drain.
  local mark = cjson.decode(revoked)
  tell_late(lease.node_id, 'revoked')
  reap_lease(lease, mark.why, mark.by, nil)
  tombstone(request_key, lease.request_hash, 'revoked_told', lease_id, token, call_id)
  flush_nodes()
  return { 'late', int_text(now), 'revoked' }
end
if deadline_ms <= now then
  -- Over before it was given back, whether or not anybody had noticed.
  expire_lease(lease, deadline_ms)
  tell_late(lease.node_id, 'expired')
  tombstone(request_key, lease.request_hash, 'expired_told', lease_id, token, call_id)
  flush_nodes()
  return { 'late', int_text(now), 'expired' }
end

local function names_on(node_id, node)
  return json_names(next_on(node_id, node))
end

local answer, node = give_back_now(lease, request_key, outcome, call_id, names_on)
judge_probe(lease, outcome, node)
flush_nodes()
return answer
