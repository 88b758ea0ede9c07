-- Logs what a lease's holder does with a model: loading, loaded (ok or failed), unloaded.
-- Flags: allow-oom
-- Include: pool
-- Keys: pool owner log leases marks
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
if kind == 'loading' then
  append('ModelLoading', 1, nil, token, data)
  redis.call('HSET', marks_key, 'loading|' .. lease_id, int_text(now) .. ' ' .. lease.node_id)
elseif kind == 'loaded' then
  append('ModelLoaded', 1, nil, token, data)
  redis.call('HDEL', marks_key, 'loading|' .. lease_id)
else
  append('ModelUnloaded', 1, nil, token, data)
end
return { 'ok', int_text(now) }
