-- Closes a node for new leases by an operator's hand; `until_ms` 0 is until further notice.
-- Include: pool node
-- Keys: pool owner log declared capacity open cordons reservations
-- Args: actor node_id why by until_ms:int
-- Replies: ok unchanged undeclared pool_missing pool_version
-- Events: NodeCordoned ReservationEnded PoolSuspect PoolReopened OwnerExpired
local refusal = read_pool()
if refusal then
  return refusal
end
local node = load_node(node_id)
if redis.call('HEXISTS', declared_key, node_id) == 0 or not node then
  return { 'undeclared' }
end
local held = redis.call('HGET', cordons_key, node_id)
local till = until_ms > 0 and json_int(until_ms) or 'null'
local mark = '{"why":' .. json_text(why) .. ',"by":' .. json_text(by)
if held and string.sub(held, 1, #mark) == mark
    and string.match(held, '"until_ms":(%w+)}$') == till then
  return { 'unchanged', int_text(now) }
end
append('NodeCordoned', 1, nil, nil, '{"node_id":' .. json_text(node_id) .. ',"why":'
  .. json_text(why) .. ',"by":' .. json_text(by) .. ',"until_ms":' .. till .. '}')
redis.call('HSET', cordons_key, node_id, mark .. ',"since_ms":' .. json_int(now)
  .. ',"until_ms":' .. till .. '}')
node.cordon = until_ms
if node.reserved then
  append('ReservationEnded', 1, nil, nil, '{"node_id":' .. json_text(node_id)
    .. ',"request_key":' .. json_text(node.reserved.request)
    .. ',"how":"node_ineligible","next":[]}')
  redis.call('HDEL', reservations_key, node_id)
  node.reserved = nil
  free_something()
end
touch(node_id)
flush_nodes()
return { 'ok', int_text(now) }
