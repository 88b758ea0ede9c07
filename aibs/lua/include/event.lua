-- Include: int json clock
-- Exports: pool_seq pool_last_id pool_changes append
-- Appending: the same fields for every type, so that the stream's nodes share them.
local pool_changes = {}

local function append(type, version, fence, token, data)
  pool_seq = pool_seq + 1
  local id = redis.call('XADD', log_key, '*',
    'type', type, 'v', version, 'seq', int_text(pool_seq), 'at_ms', int_text(now),
    'actor', actor, 'fence', fence and int_text(fence) or '', 'token', token or '', 'data', data)
  redis.call('HSET', pool_key, 'seq', int_text(pool_seq), 'last_id', id, unpack(pool_changes))
  pool_changes = {}
  pool_last_id = id
  return id
end
