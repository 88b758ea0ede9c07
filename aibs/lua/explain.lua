-- What every node would say to a request now, and whether waiters would be before it. Writes nothing.
-- Flags: no-writes
-- Include: pool deny
-- Keys: pool owner log capacity open lanes waiters heads queue_high queue_normal queue_low tried counts denials declared
-- Args: actor lane class staleness_ms:int swap_min_ms:int swap_max_ms:int
-- Replies: ok denied pool_missing
local held = redis.call('HMGET', pool_key, 'pool_id', 'state', 'epoch', 'frees', 'cursor', 'waiting')
if not held[1] then
  return { 'pool_missing' }
end
pool_state = held[2]
pool_epoch = tonumber(held[3])
pool_frees = tonumber(held[4] or 0)
pool_cursor = held[5] or ''
pool_waiting = tonumber(held[6] or 0)

local lanes, never = lanes_of(lane)
if not lanes then
  return { 'denied', int_text(now), never }
end
local request = { key = '', class = class, rank = RANKS[class], arrival_ms = now, number = MAX_INT,
  head_ms = false, lanes = lanes }
mind_the_queue(request)
local answer = { 'ok', int_text(now) }
local ids = redis.call('HKEYS', declared_key)
table.sort(ids)
for _, node_id in ipairs(ids) do
  for _, one in ipairs(lanes) do
    local node = load_node(node_id)
    local reason, missing, wait, why
    if one.allowed and not one.allowed[node_id] then
      reason = 'affinity'
    else
      reason, missing, wait, why = fit(node_id, node, one, request)
      if not reason and not request.turn(node_id, node, one, request) then
        reason, why = 'reserved', 'queue'
      end
    end
    answer[#answer + 1] = '{"node_id":' .. json_text(node_id) .. ',"worker_id":'
      .. json_text(one.worker_id) .. ',"reason":' .. json_text(reason) .. ',"missing_bytes":'
      .. json_int(missing) .. ',"wait_ms":' .. json_int(wait) .. ',"why":' .. json_text(why)
      .. ',"weight_bytes":' .. json_int(weight_on(node, one)) .. ',"warm":'
      .. json_bool(node and warm_on(node, one.key)) .. '}'
  end
end
return answer
