-- Include: choose
-- Exports: grant
-- Writes a grant: the lease, its evidence, and what it does to the node.
local function evidence_text(found, leased_before, used_before, weight, source, passed)
  local node, lane = found.node, found.lane
  local tried = 0
  for _ in pairs(looked[lane.worker_id]) do
    tried = tried + 1
  end
  return string.format('{"stamp_age_ms":%d,"observed_at_ms":%d,"stamp_fence":%d,"stamp_seq":%d,'
    .. '"budget_bytes":%d,"foreign_bytes":%d,"leased_before_bytes":%d,"leased_after_bytes":%d,'
    .. '"slots":%d,"slots_used_before":%d,"slots_used_after":%d,"weight_bytes":%d,'
    .. '"weight_source":"%s","fingerprint":"%s","nodes_tried":%d,"passed":', now - node.observed_at,
    node.observed_at, node.observed_fence, node.seq, node.budget, foreign_for(node, lane.key),
    leased_before, leased_bytes(node), node.slots, used_before, node.used, weight, source,
    node.print, tried) .. passed .. '}'
end

-- `passed` and `names` are JSON lists: whom the grant passed, and who may look next.
local function grant(found, request, queue_ms, passed, names)
  local node_id, node, lane = found.node_id, found.node, found.lane
  local weight, source = weight_on(node, lane)
  local leased_before, used_before = leased_bytes(node), node.used
  -- What is leased and not yet loaded is cold for this holder too: it loads, and waits for the same.
  local warm = resident_on(node, lane.key)
  local unload, unload_texts = to_unload(node, lane.key, weight), {}
  local probe, going_for_others = node.trip ~= nil, {}
  if not warm then
    for key in pairs(node.going or {}) do
      if key ~= lane.key then
        going_for_others[#going_for_others + 1] = key
      end
    end
    table.sort(going_for_others)
  end
  if node.reserved and node.reserved.request ~= request_key then
    node.reserved.since = node.reserved.since or {}
    node.reserved.since[lease_id] = { key = lane.key, weight = weight }
  end
  take(node, lane.key, weight, lane.params)
  for i, key in ipairs(unload) do
    unload_texts[i] = json_text(key)
    -- A model that is there needs no room: its holder looks before it unloads anything.
    if not warm then
      node.going = node.going or {}
      node.going[key] = { lease_id = lease_id, at = now }
    end
  end
  for _, key in ipairs(going_for_others) do
    unload_texts[#unload_texts + 1] = json_text(key)
  end
  if probe then
    node.trip.probe = lease_id
  end
  touch_use(node_id)
  if pool_cursor ~= node_id then
    pool_changes[#pool_changes + 1] = 'cursor'
    pool_changes[#pool_changes + 1] = node_id
  end
  local token, deadline = int_text(pool_seq + 1), int_text(now + ttl_ms)
  -- `identity` and the lane's and the node's names come as JSON, made once by their owners.
  local text = '{"lease_id":"' .. lease_id .. '","token":"' .. token .. '",' .. identity .. ','
    .. lane.text .. ',' .. node.text .. string.format(',"weight_bytes":%d,"params":%d,"ttl_ms":%d,'
    .. '"drain_ms":%d,"acquired_at_ms":%d,"probe":%s,"warm":%s,"unload_first":[', weight,
    lane.params, ttl_ms, drain_ms, now, json_bool(probe), json_bool(warm))
    .. table.concat(unload_texts, ',') .. '],"queue_ms":' .. int_text(queue_ms) .. '}'
  append('LeaseAcquired', 1, nil, token, '{"lease":' .. text .. ',"deadline_ms":' .. deadline
    .. ',"evidence":' .. evidence_text(found, leased_before, used_before, weight, source, passed)
    .. ',"next":' .. names .. '}')
  redis.call('HSET', leases_key, lease_id, text)
  redis.call('ZADD', deadlines_key, deadline, lease_id)
  redis.call('HSET', requests_key, request_key, string.format('%s %s %s %s %d %d %d %d ',
    probe and 'probe' or 'lease', request_hash, lease_id, token, now, drain_ms, weight, lane.params)
    .. node_id .. ' ' .. node.base_url .. ' ' .. lane.key)
  flush_nodes()
  return { 'granted', int_text(now), deadline, text }
end
