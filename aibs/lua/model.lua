-- Logs what a lease's holder does with a model: loading, loaded (ok or failed), unloaded.
-- Flags: allow-oom
-- Include: pool node
-- Keys: pool owner log leases marks capacity open
-- Args: actor lease_id token kind model ms:int outcome
-- Replies: ok unknown pool_missing pool_version
-- Events: ModelLoading ModelLoaded ModelUnloaded PoolSuspect PoolReopened OwnerExpired
local refusal = read_pool()
if refusal then
  return refusal
end
local text = redis.call('HGET', leases_key, lease_id)
local lease = text and cjson.decode(text) or nil
if not lease or lease.token ~= token then
  return { 'unknown', int_text(now) }
end
local loading = redis.call('HEXISTS', marks_key, 'loading|' .. lease_id) == 1
-- The same report again, after its answer was lost.
if kind == 'loading' and loading or kind == 'loaded' and not loading then
  return { 'ok', int_text(now) }
end
local data = '{"lease_id":' .. json_text(lease_id) .. ',"node_id":' .. json_text(lease.node_id)
  .. ',"model":' .. json_text(model) .. ',"ms":' .. json_int(ms) .. ',"outcome":'
  .. json_text(outcome) .. '}'
-- What the holder saw is as good as a poll, and sooner.
local function note_on_node()
  local node = load_node(lease.node_id)
  if not node or node.base_url ~= lease.base_url or outcome ~= 'ok' then
    return
  end
  if kind == 'loaded' then
    node.own = node.own or {}
    node.own[lease.key] = node.own[lease.key] or { charge = lease.weight_bytes, since = now }
    node.own[lease.key].maybe = nil
  elseif kind == 'unloaded' and node.own and node.own[model] then
    node.own[model] = nil
    if node.busy then
      node.busy[model] = nil
    end
    if node.going then
      node.going[model] = nil
    end
    -- A poll that began before shows it still: no sign of anybody's use.
    node.ended = node.ended or {}
    node.ended[model] = now
  end
  touch(lease.node_id)
end

note_on_node()
if kind == 'loading' then
  append('ModelLoading', 1, nil, token, data)
  redis.call('HSET', marks_key, 'loading|' .. lease_id, int_text(now) .. ' ' .. lease.node_id)
elseif kind == 'loaded' then
  append('ModelLoaded', 1, nil, token, data)
  redis.call('HDEL', marks_key, 'loading|' .. lease_id)
else
  append('ModelUnloaded', 1, nil, token, data)
end
flush_nodes()
return { 'ok', int_text(now) }
