-- Notes what a warm-up measured, one event a worker and node. `measured` are the events' data, as JSON;
-- `call_id` names the whole note, so that it is made once.
-- Include: pool
-- Keys: pool owner log
-- Args: actor call_id measured*
-- Replies: ok duplicate pool_missing pool_version
-- Events: WarmupMeasured PoolSuspect PoolReopened OwnerExpired
local refusal = read_pool()
if refusal then
  return refusal
end
if redis.call('HGET', pool_key, 'recorded') == call_id then
  return { 'duplicate', int_text(now) }
end
for i = first_measured, #ARGV do
  append('WarmupMeasured', 1, nil, nil, ARGV[i])
end
redis.call('HSET', pool_key, 'recorded', call_id)
return { 'ok', int_text(now) }
