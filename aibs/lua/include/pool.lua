-- Include: term
-- Exports: STATE_VERSION pool_id pool_state pool_epoch pool_frees pool_cursor pool_arrivals pool_fence pool_nodes pool_waiting server_run_id suspect reopen recovery_ms_of_pool mind_fence read_pool
-- Which pool this is, and whether the server is still the one whose memory the pool trusts.
local STATE_VERSION = '1'
local FENCE_JUMP = 1000


local function server_run_id()
  local info = redis.call('INFO', 'server')
  local _, last = string.find(info, 'run_id:', 1, true)
  return string.sub(info, last + 1, last + 40)
end

-- The server may have lost writes: nothing is granted until holders and nodes were heard again.
local function suspect(why, recovery_ms)
  local run_id = server_run_id()
  local recover_at = now + recovery_ms
  pool_epoch = pool_epoch + 1
  append('PoolSuspect', 1, nil, nil, '{"why":' .. json_text(why)
    .. ',"run_id":' .. json_text(run_id) .. ',"epoch":' .. json_int(pool_epoch)
    .. ',"recover_at_ms":' .. json_int(recover_at) .. '}')
  redis.call('HSET', pool_key, 'state', 'suspect', 'run_id', run_id, 'epoch', int_text(pool_epoch),
    'suspect_since_ms', int_text(now), 'recover_at_ms', int_text(recover_at), 'jump', FENCE_JUMP)
  pool_state = 'suspect'
  end_term('pool_suspect')
end

local function reopen(why, fence)
  append('PoolReopened', 1, fence, nil, '{"why":' .. json_text(why)
    .. ',"run_id":' .. json_text(server_run_id()) .. ',"epoch":' .. json_int(pool_epoch) .. '}')
  redis.call('HSET', pool_key, 'state', 'open', 'run_id', server_run_id())
  pool_state = 'open'
end

local function recovery_ms_of_pool()
  return tonumber(redis.call('HGET', pool_key, 'recovery_ms'))
end

-- A fence above every one that this server knows: it lost the election that gave it out. Told once,
-- because the next term's fence jumps over it.
local function mind_fence(known, held)
  if known > held and known > held + tonumber(redis.call('HGET', pool_key, 'jump') or 0) then
    suspect('fence_regressed', recovery_ms_of_pool())
  end
end

-- Reads the pool; answers a reply when no script may act on it.
local function read_pool()
  local held = redis.call('HMGET', pool_key, 'pool_id', 'state_version', 'run_id', 'state', 'seq',
    'last_id', 'closed_id', 'epoch', 'frees', 'cursor', 'arrivals', 'fence', 'nodes', 'waiting')
  if not held[1] then
    return { 'pool_missing' }
  end
  if held[2] ~= STATE_VERSION then
    return { 'pool_version', held[2], STATE_VERSION }
  end
  pool_id = held[1]
  pool_state = held[4]
  pool_seq = tonumber(held[5])
  pool_last_id = held[6]
  pool_epoch = tonumber(held[8])
  pool_frees = tonumber(held[9] or 0)
  pool_cursor = held[10] or ''
  pool_arrivals = tonumber(held[11] or 0)
  pool_fence = tonumber(held[12] or 0)
  pool_nodes = tonumber(held[13] or 0)
  pool_waiting = tonumber(held[14] or 0)
  -- The text was made for one server process, and vanished with it.
  if (check_server or held[3] ~= text_server) and held[3] ~= server_run_id() then
    if held[7] and held[7] == held[6] then
      reopen('clean_shutdown')
    else
      suspect('server_restarted', recovery_ms_of_pool())
    end
  end
  return nil
end
