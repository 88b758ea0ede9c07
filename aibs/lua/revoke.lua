-- Takes a lease from its holder by an operator's hand: its heartbeat learns it and the work stops.
-- The slot is free at the holder's release, or is reaped when the heartbeat was due, and drains.
-- Flags: allow-oom
-- Include: pool lease
-- Keys: pool owner log leases deadlines drains requests ended_until capacity open trips marks
-- Args: actor by why lease_id force heartbeat_ms:int
-- Replies: ok renewed_recently already unknown pool_missing pool_version
-- Events: LeaseRevoked PoolSuspect PoolReopened OwnerExpired
local refusal = read_pool()
if refusal then
  return refusal
end
local lease = lease_of(lease_id)
if not lease then
  return { 'unknown', int_text(now) }
end
local held = redis.call('HGET', marks_key, 'revoked|' .. lease_id)
if held then
  return { 'already', int_text(now), int_text(cjson.decode(held).due_ms) }
end
local beat = tonumber(redis.call('HGET', marks_key, 'beat|' .. lease_id) or lease.acquired_at_ms)
if force ~= '1' and now - beat < 2 * heartbeat_ms then
  return { 'renewed_recently', int_text(now), int_text(math.max(0, now - beat)) }
end
local due_ms = now + heartbeat_ms
append('LeaseRevoked', 1, nil, lease.token, '{"lease_id":' .. json_text(lease_id)
  .. ',"node_id":' .. json_text(lease.node_id) .. ',"why":' .. json_text(why) .. ',"by":'
  .. json_text(by) .. ',"due_ms":' .. json_int(due_ms) .. '}')
redis.call('HSET', marks_key, 'revoked|' .. lease_id, '{"at_ms":' .. json_int(now) .. ',"why":'
  .. json_text(why) .. ',"by":' .. json_text(by) .. ',"due_ms":' .. json_int(due_ms) .. '}')
redis.call('ZADD', deadlines_key, int_text(due_ms), lease_id)
-- Its line tells that release has to look.
local line = redis.call('HGET', requests_key, lease.request_key)
redis.call('HSET', requests_key, lease.request_key, (string.gsub(line, "^%S+", "revoked")))
return { 'ok', int_text(now), int_text(due_ms) }
