-- Closes a node whose answers failed; one lease tries it again when its time has come.
-- Include: pool lease
-- Keys: pool owner log leases deadlines drains requests ended_until capacity open trips declared reservations marks
-- Args: actor node_id why by
-- Replies: ok unchanged undeclared pool_missing pool_version
-- Events: NodeTripped ReservationEnded PoolSuspect PoolReopened OwnerExpired
local refusal = read_pool()
if refusal then
  return refusal
end
local node = load_node(node_id)
if redis.call('HEXISTS', declared_key, node_id) == 0 or not node then
  return { 'undeclared' }
end
if node.trip then
  return { 'unchanged', int_text(now), int_text(node.trip.reopen) }
end
set_trip(node_id, node, why, by, TRIP_FIRST_MS)
if node.reserved then
  append('ReservationEnded', 1, nil, nil, '{"node_id":' .. json_text(node_id)
    .. ',"request_key":' .. json_text(node.reserved.request)
    .. ',"how":"node_ineligible","next":[]}')
  redis.call('HDEL', reservations_key, node_id)
  node.reserved = nil
  free_something()
end
flush_nodes()
return { 'ok', int_text(now), int_text(node.trip.reopen) }
