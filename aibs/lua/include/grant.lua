-- Include: choose
-- Exports: grant
-- Writes a grant: the lease, its evidence, and what it does to the node.
local function evidence_text(found, leased_before, used_before, weight, source, passed)
  local node, lane = found.node, found.lane
  local tried = 0
  for _ in pairs(looked[lane.worker_id]) do
    tried = tried + 1
  end
  return '{"stamp_age_ms":' .. json_int(now - node.observed_at)
    .. ',"observed_at_ms":' .. json_int(node.observed_at)
    .. ',"stamp_fence":' .. json_int(node.observed_fence) .. ',"stamp_seq":' .. json_int(node.seq)
    .. ',"budget_bytes":' .. json_int(node.budget)
    .. ',"foreign_bytes":' .. json_int(foreign_for(node, lane.key))
    .. ',"leased_before_bytes":' .. json_int(leased_before)
    .. ',"leased_after_bytes":' .. json_int(leased_bytes(node))
    .. ',"slots":' .. json_int(node.slots) .. ',"slots_used_before":' .. json_int(used_before)
    .. ',"slots_used_after":' .. json_int(node.used) .. ',"weight_bytes":' .. json_int(weight)
    .. ',"weight_source":' .. json_text(source)
    .. ',"fingerprint":"' .. node.print .. '","nodes_tried":' .. json_int(tried)
    .. ',"passed":' .. passed .. '}'
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
  touch(node_id)
  if pool_cursor ~= node_id then
    pool_changes[#pool_changes + 1] = 'cursor'
    pool_changes[#pool_changes + 1] = node_id
  end
  local token, deadline = int_text(pool_seq + 1), int_text(now + ttl_ms)
  -- `identity` and the lane's and the node's names come as JSON, made once by their owners.
  local text = '{"lease_id":"' .. lease_id .. '","token":"' .. token .. '",' .. identity .. ','
    .. lane.text .. ',' .. node.text .. ',"weight_bytes":' .. json_int(weight) .. ',"params":'
    .. json_int(lane.params) .. ',"ttl_ms":' .. json_int(ttl_ms) .. ',"drain_ms":'
    .. json_int(drain_ms) .. ',"acquired_at_ms":' .. json_int(now) .. ',"probe":'
    .. json_bool(probe) .. ',"warm":' .. json_bool(warm) .. ',"unload_first":['
    .. table.concat(unload_texts, ',') .. '],"queue_ms":' .. json_int(queue_ms) .. '}'
  append('LeaseAcquired', 1, nil, token, '{"lease":' .. text .. ',"deadline_ms":' .. deadline
    .. ',"evidence":' .. evidence_text(found, leased_before, used_before, weight, source, passed)
    .. ',"next":' .. names .. '}')
  redis.call('HSET', leases_key, lease_id, text)
  redis.call('ZADD', deadlines_key, deadline, lease_id)
  redis.call('HSET', requests_key, request_key, table.concat({ probe and 'probe' or 'lease',
    request_hash, lease_id, token, int_text(now), int_text(drain_ms), int_text(weight),
    int_text(lane.params), node_id, node.base_url, lane.key }, ' '))
  flush_nodes()
  return { 'granted', int_text(now), deadline, text }
end
