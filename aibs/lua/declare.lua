-- Declares the fleet: first, or by a higher revision. Budgets, URLs and weights that other scripts
-- use come from this document, never from their callers.
-- `lanes` are pairs: what a request may ask for, and the workers that may serve it, as JSON.
-- Include: fence fleet
-- Keys: pool owner log rejections fleet declared nodes stamps capacity open lanes weights cordons trips reservations
-- Args: actor owner fence:int revision:int fingerprint document changes lanes*
-- Replies: ok unchanged mismatch fenced pool_missing pool_version
-- Events: FleetDeclared ReservationEnded OwnerExpired FencedWriteRejected PoolSuspect
local refusal = read_pool()
if refusal then
  return refusal
end
refusal = check_fence('declare', owner, fence)
if refusal then
  return refusal
end
local held = redis.call('HMGET', fleet_key, 'revision', 'fingerprint')
if held[1] then
  local declared_revision = tonumber(held[1])
  if held[2] == fingerprint and revision <= declared_revision then
    return { 'unchanged', held[1], held[2] }
  end
  if revision <= declared_revision then
    return { 'mismatch', held[1], held[2] }
  end
end

local fleet = cjson.decode(document)
local declared, urls = {}, {}
for _, node in ipairs(fleet.nodes) do
  local budget, slots = node.vram_budget_bytes, node.max_parallel_requests
  declared[#declared + 1] = node.node_id
  declared[#declared + 1] = '{"base_url":' .. json_text(node.base_url)
    .. ',"budget_bytes":' .. json_int(budget ~= cjson.null and budget or nil)
    .. ',"slots":' .. json_int(slots ~= cjson.null and slots or nil)
    .. ',"memory":' .. json_text(node.memory) .. '}'
  urls[node.node_id] = node.base_url
end

local id = append('FleetDeclared', 1, fence, nil, '{"revision":' .. json_int(revision)
  .. ',"fingerprint":' .. json_text(fingerprint) .. ',"fleet":' .. document
  .. ',"changes":' .. changes .. '}')
redis.call('HSET', fleet_key, 'revision', int_text(revision), 'fingerprint', fingerprint,
  'document', document, 'event_id', id)
-- A node that is gone, or that moved to another URL, is another node: nothing known of it stays.
local function forget_node(node_id)
  redis.call('HDEL', nodes_key, node_id)
  redis.call('HDEL', stamps_key, node_id)
  redis.call('HDEL', cordons_key, node_id)
  redis.call('HDEL', trips_key, node_id)
  local request_key = redis.call('HGET', reservations_key, node_id)
  if request_key then
    append('ReservationEnded', 1, fence, nil, '{"node_id":' .. json_text(node_id)
      .. ',"request_key":' .. json_text(request_key) .. ',"how":"node_ineligible","next":[]}')
    redis.call('HDEL', reservations_key, node_id)
  end
  for _, field in ipairs(redis.call('HKEYS', weights_key)) do
    if string.sub(field, 1, #node_id + 1) == node_id .. '|' then
      redis.call('HDEL', weights_key, field)
    end
  end
end

local before, moved = redis.call('HGETALL', declared_key), {}
for i = 1, #before, 2 do
  local node_id = before[i]
  if cjson.decode(before[i + 1]).base_url ~= urls[node_id] then
    moved[node_id] = true
    forget_node(node_id)
    local node = load_node(node_id)
    if node and node.used > 0 and not urls[node_id] then
      -- Its leases go on: kept until the last has ended, and no look finds it.
      local kept = new_node(node_id, node.base_url)
      kept.used, kept.params, kept.m, kept.drains = node.used, node.params, node.m, node.drains
      kept.ended, kept.index, kept.undeclared = node.ended, node.index, true
      records[node_id] = kept
      touch(node_id)
    else
      drop_node(node_id)
    end
  end
end

local function declare_node(node)
  local budget, slots = node.vram_budget_bytes, node.max_parallel_requests
  local held = load_node(node.node_id)
  if not held or held.base_url ~= node.base_url then
    held = new_node(node.node_id, node.base_url)
    records[node.node_id] = held
  end
  held.budget = budget ~= cjson.null and budget or nil
  held.slots = slots ~= cjson.null and slots or nil
  held.fingerprint, held.undeclared = false, nil
  touch(node.node_id)
end

redis.call('DEL', declared_key)
pool_nodes = #fleet.nodes
redis.call('HSET', pool_key, 'nodes', int_text(pool_nodes))
for i = 1, #declared, 2 do
  redis.call('HSET', declared_key, declared[i], declared[i + 1])
end
for _, node in ipairs(fleet.nodes) do
  declare_node(node)
end
redis.call('DEL', lanes_key)
for i = first_lanes, #ARGV, 2 do
  redis.call('HSET', lanes_key, ARGV[i], ARGV[i + 1])
end
free_something()
flush_nodes()
return { 'ok', int_text(revision), fingerprint, id }
