-- Ends a request whatever became of it, and keeps a late acquire of it from taking a lease: sent by
-- every caller whose acquire was interrupted, until answered. An empty hash means whatever is known
-- under that key.
-- Flags: allow-oom
-- Include: pool deny wait
-- Keys: pool owner log leases deadlines drains requests ended_until capacity open trips lanes waiters heads reservations reserved queue_high queue_normal queue_low places tried counts denials marks
-- Args: actor request_key request_hash staleness_ms:int swap_min_ms:int swap_max_ms:int
-- Replies: ok pool_missing pool_version
-- Events: WaitEnded ReservationEnded LeaseReleased NodeTripped NodeRestored PoolSuspect PoolReopened OwnerExpired
local refusal = read_pool()
if refusal then
  return refusal
end
local held = redis.call('HGET', requests_key, request_key)
if tombstone_of(held) then
  return { 'ok', int_text(now), 'ended' }
end
local kind, hash, id = string.match(held or '', '^(%S+) (%S+) ?(%S*)')
if not held or kind == 'ended' then
  tombstone(request_key, request_hash ~= '' and request_hash or '-', 'cancelled', nil, nil, nil)
  return { 'ok', int_text(now), 'unseen' }
end
-- Another request under the same name is not the caller's to end.
if request_hash ~= '' and hash ~= request_hash then
  return { 'ok', int_text(now), 'another' }
end
if kind == 'queued' then
  end_wait(waiter_of(request_key), 'cancelled')
  flush_nodes()
  return { 'ok', int_text(now), 'queued' }
end
-- A revoked lease too: its holder says that the work is over.
local lease = lease_of(id)
local _, node = give_back_now(lease, request_key, 'cancelled', '', function(node_id, freed_node)
  return json_names(next_on(node_id, freed_node))
end)
judge_probe(lease, 'cancelled', node)
flush_nodes()
return { 'ok', int_text(now), 'leased' }
