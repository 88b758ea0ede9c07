-- Drops what models were seen to weigh on a node: the declared weights count again.
-- Include: pool node
-- Keys: pool owner log weights capacity open
-- Args: actor node_id by
-- Replies: ok unchanged pool_missing pool_version
-- Events: WeightsForgotten PoolSuspect PoolReopened OwnerExpired
local refusal = read_pool()
if refusal then
  return refusal
end
local fields, keys = {}, {}
for _, field in ipairs(redis.call('HKEYS', weights_key)) do
  if string.sub(field, 1, #node_id + 1) == node_id .. '|' then
    fields[#fields + 1] = field
    keys[#keys + 1] = json_text(string.sub(field, #node_id + 2))
  end
end
if #fields == 0 then
  return { 'unchanged', int_text(now) }
end
table.sort(keys)
append('WeightsForgotten', 1, nil, nil, '{"node_id":' .. json_text(node_id) .. ',"by":'
  .. json_text(by) .. ',"keys":[' .. table.concat(keys, ',') .. ']}')
for _, field in ipairs(fields) do
  redis.call('HDEL', weights_key, field)
end
local node = load_node(node_id)
if node then
  node.seen = nil
  free_something()
  touch(node_id)
  flush_nodes()
end
return { 'ok', int_text(now), int_text(#fields) }
