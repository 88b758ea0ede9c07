-- Rebuilds the nodes' records of leases, reservations and marks from the state that the log tells,
-- and the indexes from the records. Answers the nodes that differed; `apply` 1 mends them.
-- Flags: allow-oom
-- Include: pool give_back fleet
-- Keys: pool owner log leases deadlines marks requests ended_until capacity open cordons reservations
-- Args: actor apply
-- Replies: ok pool_missing pool_version
-- Events: PoolSuspect PoolReopened OwnerExpired
local refusal = read_pool()
if refusal then
  return refusal
end
local kept = {}
local function usage_of(node_id)
  local usage = kept[node_id]
  if not usage then
    usage = { used = 0, params = 0, drains = {} }
    kept[node_id] = usage
  end
  return usage
end

local leases = redis.call('HGETALL', leases_key)
for i = 2, #leases, 2 do
  local lease = cjson.decode(leases[i])
  local node = load_node(lease.node_id)
  if node and node.base_url == lease.base_url then
    take(usage_of(lease.node_id), lease.key, lease.weight_bytes, lease.params)
  end
end
for _, node_id in ipairs(all_nodes()) do
  for _, drain in ipairs(load_node(node_id).drains or {}) do
    take(usage_of(node_id), drain.key, drain.weight, drain.params)
  end
end

local function same_models_leased(a, b)
  for key, entry in pairs(a or {}) do
    if not b or not b[key] or model_weight(entry) ~= model_weight(b[key]) then
      return false
    end
  end
  for key in pairs(b or {}) do
    if not a or not a[key] then
      return false
    end
  end
  return true
end

local differing = {}
for _, node_id in ipairs(all_nodes()) do
  local node, usage = load_node(node_id), usage_of(node_id)
  local cordon = redis.call('HGET', cordons_key, node_id)
  local cordon_until = cordon and tonumber(string.match(cordon, '"until_ms":(%d+)')) or 0
  local reserved = redis.call('HGET', reservations_key, node_id) or nil
  local same = node.used == usage.used and node.params == usage.params
    and same_models_leased(node.m, usage.m)
    and (node.cordon ~= nil) == (cordon ~= false and cordon ~= nil)
    and (node.cordon or 0) == cordon_until
    and (node.reserved and node.reserved.request or nil) == reserved
  local wanted = members(node_id, node)
  for i = 1, math.max(#wanted, #(node.index or {})) do
    -- A node that a look found stale is out of the indexes until its next poll.
    same = same and (#(node.index or {}) == 0 or wanted[i] == node.index[i])
  end
  for _, member in ipairs(node.index or {}) do
    same = same and redis.call('ZSCORE', open_key, member) ~= false
  end
  if not same then
    differing[#differing + 1] = node_id
    if apply == '1' then
      node.used, node.params, node.m = usage.used, usage.params, usage.m
      node.cordon = cordon and cordon_until or nil
      touch(node_id)
    end
  end
end
local listed = 0
for _, node_id in ipairs(all_nodes()) do
  listed = listed + #(load_node(node_id).index or {})
end
if redis.call('ZCARD', open_key) ~= listed then
  differing[#differing + 1] = '*'
end
-- Who only compares changes nothing: slots that have drained come back when a decision looks.
if apply == '1' then
  flush_nodes()
end
return { 'ok', int_text(now), differing }
