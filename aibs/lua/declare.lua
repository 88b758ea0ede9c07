-- Declares the fleet: first, or by a higher revision. Budgets, URLs and weights that other scripts
-- use come from this document, never from their callers.
-- Include: fence
-- Keys: pool owner log rejections fleet declared nodes stamps
-- Args: actor owner fence:int revision:int fingerprint document changes
-- Replies: ok unchanged mismatch fenced pool_missing pool_version
-- Events: FleetDeclared OwnerExpired FencedWriteRejected PoolSuspect
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
local before = redis.call('HGETALL', declared_key)
for i = 1, #before, 2 do
  if cjson.decode(before[i + 1]).base_url ~= urls[before[i]] then
    redis.call('HDEL', nodes_key, before[i])
    redis.call('HDEL', stamps_key, before[i])
  end
end
redis.call('DEL', declared_key)
for i = 1, #declared, 2 do
  redis.call('HSET', declared_key, declared[i], declared[i + 1])
end
return { 'ok', int_text(revision), fingerprint, id }
