-- Records that the server is about to be stopped by its last holder, with nothing in flight. As the
-- log's last event it lets the next start reopen the pool without a recovery.
-- Flags: allow-oom
-- Include: pool term
-- Keys: pool owner log deadlines drains
-- Args: actor
-- Replies: ok in_use pool_missing pool_version
-- Events: PoolClosed OwnerExpired
local refusal = read_pool()
if refusal then
  return refusal
end
expire_term()
if term.owner ~= '' then
  return { 'in_use', term.owner, int_text(term.fence) }
end
if pool_state ~= 'open' or redis.call('ZCARD', deadlines_key) > 0
    or redis.call('HLEN', drains_key) > 0 then
  return { 'in_use', '', '0' }
end
-- Recorded already, and nothing came after it: the same stop, told again.
local closed_id = redis.call('HGET', pool_key, 'closed_id')
if closed_id and closed_id == pool_last_id then
  return { 'ok', closed_id }
end
local id = append('PoolClosed', 1, nil, nil, '{"run_id":' .. json_text(server_run_id()) .. '}')
redis.call('HSET', pool_key, 'closed_id', id)
return { 'ok', id }
