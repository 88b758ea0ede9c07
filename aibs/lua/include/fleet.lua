-- Include: node json
-- Exports: new_node drop_node
-- How nodes come and go.
local function new_node(node_id, base_url)
  return { base_url = base_url, observed_at = 0, used = 0, params = 0,
    text = '"node_id":' .. json_text(node_id) .. ',"base_url":' .. json_text(base_url) }
end

local function drop_node(node_id)
  local node = load_node(node_id)
  if node then
    if node.index and #node.index > 0 then
      redis.call('ZREM', open_key, unpack(node.index))
    end
    redis.call('HDEL', capacity_key, node_id, node_id .. USE)
  end
  drop_record(node_id)
end
