-- The common case of release: a living lease given back while nobody waits. Whenever it is not that
-- simple it answers `ask`, and has changed nothing: release decides.
-- Flags: allow-oom
-- Include: pool give_back
-- Keys: pool owner log leases deadlines requests ended_until capacity open marks
-- Args: actor request_key lease_id token outcome call_id
-- Replies: ok ask pool_missing pool_version
-- Events: LeaseReleased PoolSuspect PoolReopened OwnerExpired
local refusal = read_pool()
if refusal then
  return refusal
end
local lease = pool_waiting == 0
  and lease_in(redis.call('HGET', requests_key, request_key)) or nil
if not lease or lease.lease_id ~= lease_id or lease.token ~= token
    or tonumber(redis.call('ZSCORE', deadlines_key, lease_id)) <= now then
  return { 'ask' }
end
local answer = give_back_now(lease, request_key, outcome, call_id, nil)
flush_nodes()
return answer
