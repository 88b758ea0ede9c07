-- Opens a node again that an operator had closed.
-- Include: pool node
-- Keys: pool owner log capacity open cordons
-- Args: actor node_id by
-- Replies: ok unchanged pool_missing pool_version
-- Events: NodeUncordoned PoolSuspect PoolReopened OwnerExpired
local refusal = read_pool()
if refusal then
  return refusal
end
if redis.call('HEXISTS', cordons_key, node_id) == 0 then
  return { 'unchanged', int_text(now) }
end
append('NodeUncordoned', 1, nil, nil, '{"node_id":' .. json_text(node_id) .. ',"by":'
  .. json_text(by) .. '}')
redis.call('HDEL', cordons_key, node_id)
local node = load_node(node_id)
if node then
  node.cordon = nil
  free_something()
  touch(node_id)
  flush_nodes()
end
return { 'ok', int_text(now) }
