-- Include: turn lease
-- Exports: SWEEP_MAX set_reservation end_wait sweep_places keep_place soonest
-- How a request begins to wait, reserves a node, and stops waiting.
local SWEEP_MAX = 16

local function set_reservation(node_id, node, request, lane, weight)
  append('NodeReserved', 1, nil, nil, '{"node_id":' .. json_text(node_id)
    .. ',"request_key":' .. json_text(request.key) .. ',"why":"no_memory","weight_bytes":'
    .. json_int(weight) .. '}')
  redis.call('HSET', reservations_key, node_id, request.key)
  redis.call('HSET', reserved_key, request.key, node_id)
  node.reserved = { request = request.key, key = lane.key, weight = weight, since = {} }
  touch_use(node_id)
end

local function end_reservation_of(request_key, how)
  local node_id = redis.call('HGET', reserved_key, request_key)
  if not node_id then
    return
  end
  redis.call('HDEL', reserved_key, request_key)
  -- The node may have lost it already, when it left the fleet or became ineligible.
  if redis.call('HGET', reservations_key, node_id) ~= request_key then
    return
  end
  local node = load_node(node_id)
  if node and node.reserved and node.reserved.request == request_key then
    node.reserved = nil
    touch_use(node_id)
  end
  free_something()
  local names = how ~= 'granted' and json_names(next_on(node_id, node)) or '[]'
  append('ReservationEnded', 1, nil, nil, '{"node_id":' .. json_text(node_id)
    .. ',"request_key":' .. json_text(request_key) .. ',"how":' .. json_text(how)
    .. ',"next":' .. names .. '}')
  redis.call('HDEL', reservations_key, node_id)
end

-- Ends a wait: granted, cancelled, forgotten or timed_out.
local function end_wait(waiter, how)
  end_reservation_of(waiter.key, how == 'granted' and 'granted' or 'wait_ended')
  redis.call('ZREM', QUEUES[waiter.class], waiter.member)
  redis.call('HDEL', waiters_key, waiter.key)
  redis.call('HDEL', heads_key, waiter.key)
  redis.call('HDEL', tried_key, waiter.key)
  redis.call('ZREM', places_key, waiter.key)
  count_waiter(waiter, -1)
  waiters_read[waiter.key] = false
  order_read = nil
  append('WaitEnded', 1, nil, nil, '{"request_key":' .. json_text(waiter.key)
    .. ',"how":' .. json_text(how) .. ',"waited_ms":'
    .. json_int(math.max(0, now - waiter.arrival_ms)) .. '}')
  note_head(waiter.class)
  if how ~= 'granted' then
    free_something()
    tombstone(waiter.key, waiter.request_hash, how, nil, nil, nil)
  else
    redis.call('HDEL', requests_key, waiter.key)
  end
end

-- Forgets waiters whose process fell silent, and those whose time to wait is over.
local function sweep_places(most)
  local due = redis.call('ZRANGE', places_key, '-inf', int_text(now), 'BYSCORE', 'LIMIT', 0, most)
  for _, request_key in ipairs(due) do
    local waiter = waiter_of(request_key)
    if waiter then
      end_wait(waiter, waiter.wait_deadline_ms <= now and 'timed_out' or 'forgotten')
    else
      redis.call('ZREM', places_key, request_key)
    end
  end
  return #due
end

local function keep_place(waiter, grace_ms)
  redis.call('ZADD', places_key, int_text(math.min(now + grace_ms, waiter.wait_deadline_ms)),
    waiter.key)
end

local function model_leases(entry)
  local leases = 0
  for i = 2, #entry, 2 do
    leases = leases + entry[i]
  end
  return leases
end

local function blockers(node, lane, weight)
  local drains = node.drains and #node.drains or 0
  local missing = lacking(node, lane.key, weight)
  local leased = {}
  for key, entry in pairs(node.m or {}) do
    if key ~= lane.key then
      leased[#leased + 1] = { weight = model_weight(entry), leases = model_leases(entry), key = key }
    end
  end
  table.sort(leased, function(a, b)
    return a.weight > b.weight or (a.weight == b.weight and a.key < b.key)
  end)
  local leases = 0
  for _, model in ipairs(leased) do
    if missing <= 0 then
      break
    end
    missing, leases = missing - model.weight, leases + model.leases
  end
  return math.max(leases, node.used - drains - node.slots + 1)
end

-- Where a waiter that has the memory nowhere can start soonest; nil when it has it somewhere.
local function soonest(request, node_ids)
  local best = nil
  for _, lane in ipairs(request.lanes) do
    for _, node_id in ipairs(lane.nodes or node_ids) do
      local node = load_node(node_id)
      if node and node.budget and node.slots and may_get(request, node_id)
          and not closed(node, lane.key, staleness_ms) then
        local weight = weight_on(node, lane)
        if lacking(node, lane.key, weight) <= 0 then
          return nil
        end
        if not node.reserved and foreign_for(node, lane.key) + weight <= node.budget then
          local one = { node_id = node_id, node = node, lane = lane, weight = weight,
            blockers = blockers(node, lane, weight), free = free_bytes(node) }
          if not best or one.blockers < best.blockers or (one.blockers == best.blockers
              and (one.free > best.free or (one.free == best.free and one.node_id < best.node_id))) then
            best = one
          end
        end
      end
    end
  end
  return best
end
