-- The common case of acquire: nobody waits, nothing is known of the request, and a node takes it.
-- Whenever it is not that simple it answers `ask`, and has changed nothing: acquire decides.
-- Include: pool grant
-- Keys: pool owner log leases deadlines requests capacity open lanes counts
-- Args: actor request_key request_hash identity lease_id lane avoid ttl_ms:int staleness_ms:int drain_ms:int swap_min_ms:int swap_max_ms:int known_fence:int
-- Replies: granted ask pool_missing pool_version
-- Events: LeaseAcquired PoolSuspect PoolReopened OwnerExpired
local refusal = read_pool()
if refusal then
  return refusal
end
if pool_state ~= 'open' or known_fence > pool_fence or pool_waiting > 0
    or redis.call('HEXISTS', requests_key, request_key) == 1 then
  return { 'ask' }
end
local request = { key = request_key, lanes = lanes_of(lane) }
if avoid ~= '[]' then
  request.avoids = set_of(cjson.decode(avoid))
end
local found = request.lanes and find_any(request)
if not found then
  -- Whatever a look put aside stays put aside: those nodes' next polls return them.
  return { 'ask' }
end
return grant(found, request, 0, '[]', '[]')
