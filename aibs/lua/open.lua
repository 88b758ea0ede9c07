-- Opens the pool, creating it where it is missing. A client that remembers a pool or a fence which
-- this server does not know makes the pool suspect: the server was flushed or restored.
-- Flags: allow-oom
-- Include: pool term
-- Keys: pool owner log
-- Args: actor new_pool_id known_pool_id known_fence:int recovery_ms:int
-- Replies: ok pool_version
-- Events: PoolCreated PoolSuspect PoolReopened OwnerExpired
local refusal = read_pool()
if refusal and refusal[1] ~= 'pool_missing' then
  return refusal
end

if refusal then
  -- A log without its pool goes on counting, so that no reader takes the loss for calm.
  local last = redis.call('XREVRANGE', log_key, '+', '-', 'COUNT', 1)
  pool_seq = 0
  pool_last_id = '0-0'
  pool_epoch = 0
  if last[1] then
    local fields = last[1][2]
    for i = 1, #fields, 2 do
      if fields[i] == 'seq' then
        pool_seq = tonumber(fields[i + 1]) or 0
      end
    end
  end
  local run_id = server_run_id()
  append('PoolCreated', 1, nil, nil, '{"pool_id":' .. json_text(new_pool_id)
    .. ',"run_id":' .. json_text(run_id) .. ',"state_version":' .. json_text(STATE_VERSION)
    .. ',"epoch":0}')
  redis.call('HSET', pool_key, 'pool_id', new_pool_id, 'state_version', STATE_VERSION,
    'run_id', run_id, 'state', 'open', 'created_at_ms', int_text(now), 'epoch', 0,
    'recovery_ms', int_text(recovery_ms))
  pool_id = new_pool_id
  pool_state = 'open'
  if known_pool_id ~= '' or known_fence > 0 or last[1] then
    suspect('pool_missing', recovery_ms)
  end
else
  -- The longest silence that any client needs is the one to wait out.
  if recovery_ms > recovery_ms_of_pool() then
    redis.call('HSET', pool_key, 'recovery_ms', int_text(recovery_ms))
  end
  read_term()
  mind_fence(known_fence, term.fence)
end

local fence = redis.call('HGET', owner_key, 'fence') or '0'
return { 'ok', pool_id, pool_state, int_text(pool_seq), pool_last_id, fence, int_text(now) }
