-- Notes that an operator knows of leaked leases: they no longer fail the check.
-- Include: pool
-- Keys: pool owner log acks
-- Args: actor by leaked*
-- Replies: ok unchanged pool_missing pool_version
-- Events: LeakAcknowledged PoolSuspect PoolReopened OwnerExpired
local KEPT_MS = 604800000

local refusal = read_pool()
if refusal then
  return refusal
end
local new, texts = {}, {}
for i = first_leaked, #ARGV do
  if not redis.call('ZSCORE', acks_key, ARGV[i]) then
    new[#new + 1], texts[#texts + 1] = ARGV[i], json_text(ARGV[i])
  end
end
if #new == 0 then
  return { 'unchanged', int_text(now) }
end
append('LeakAcknowledged', 1, nil, nil, '{"leases":[' .. table.concat(texts, ',') .. '],"by":'
  .. json_text(by) .. '}')
for _, lease_id in ipairs(new) do
  redis.call('ZADD', acks_key, int_text(now), lease_id)
end
redis.call('ZREMRANGEBYSCORE', acks_key, '-inf', int_text(now - KEPT_MS))
return { 'ok', int_text(now), int_text(#new) }
