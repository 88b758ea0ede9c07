-- Include: fit lanes
-- Exports: looked claimed look_at better best_of find find_any
-- The node for a request, found by the indexes: a bounded look, however large the fleet.
local LOOK_FIRST = 8
local LOOK_MAX = 64

local looked = {}
local claimed = false

-- The reason why this node does not take the request in this lane; nil where it does.
local function refusal_at(node_id, lane, request)
  local node = load_node(node_id)
  if lane.allowed and not lane.allowed[node_id] then
    return { node_id = node_id, reason = 'affinity' }
  elseif not may_get(request, node_id) then
    return { node_id = node_id, reason = 'node_unhealthy', why = 'avoided' }
  end
  local reason, missing, wait, why = fit(node_id, node, lane, request)
  if not reason and request.turn and not request.turn(node_id, node, lane, request) then
    reason, why = 'reserved', 'queue'
    claimed = true
  end
  if not reason then
    return nil
  end
  if reason == 'stale_residency' and node then
    unlist(node_id, node)
  end
  return { node_id = node_id, reason = reason, missing = missing, wait = wait, why = why }
end

local function look_at(node_id, lane, request)
  local seen = looked[lane.worker_id]
  if not seen then
    seen = {}
    looked[lane.worker_id] = seen
  end
  if seen[node_id] == nil then
    seen[node_id] = refusal_at(node_id, lane, request) or false
  end
  return seen[node_id] == false
end

local function after_cursor(a, b)
  local a_later, b_later = a > pool_cursor, b > pool_cursor
  if a_later ~= b_later then
    return a_later
  end
  return a < b
end

local function better(a, b)
  if a.free_slots ~= b.free_slots then
    return a.free_slots > b.free_slots
  elseif a.warm ~= b.warm then
    return a.warm
  elseif a.params ~= b.params then
    return a.params < b.params
  elseif a.free ~= b.free then
    return a.free > b.free
  elseif a.node_id ~= b.node_id then
    return after_cursor(a.node_id, b.node_id)
  end
  return a.lane.worker_id < b.lane.worker_id
end

local function candidate(node_id, lane)
  local node = load_node(node_id)
  return { node_id = node_id, node = node, lane = lane, free_slots = node.slots - node.used,
    warm = warm_on(node, lane.key), params = node.params, free = math.max(0, free_bytes(node)) }
end

local function best_of(node_ids, lane, request)
  local best = nil
  for _, node_id in ipairs(node_ids) do
    if look_at(node_id, lane, request) then
      local found = candidate(node_id, lane)
      if not best or better(found, best) then
        best = found
      end
    end
  end
  return best
end

-- The first fit in an index; among those that stand equal, the one whose turn it is.
local function first_fit(prefix, lane, request)
  for _, most in ipairs({ LOOK_FIRST, LOOK_MAX }) do
    local list = redis.call('ZRANGE', open_key, '[' .. prefix, '(' .. prefix .. LEX_END, 'BYLEX',
      'LIMIT', 0, most)
    for _, member in ipairs(list) do
      local node_id = string.sub(member, #prefix + GROUP_LENGTH + 1)
      if look_at(node_id, lane, request) then
        local group = string.sub(member, 1, #prefix + GROUP_LENGTH)
        local others = redis.call('ZRANGE', open_key, '(' .. group .. pool_cursor,
          '(' .. group .. LEX_END, 'BYLEX', 'LIMIT', 0, LOOK_FIRST)
        for _, other in ipairs(others) do
          local other_id = string.sub(other, #group + 1)
          if look_at(other_id, lane, request) then
            return candidate(other_id, lane)
          end
        end
        return candidate(node_id, lane)
      end
    end
    if #list < most then
      return nil
    end
  end
  return nil
end

local function find(lane, request)
  if lane.nodes and #lane.nodes <= LOOK_MAX then
    return best_of(lane.nodes, lane, request)
  end
  if pool_nodes <= SMALL_FLEET then
    return best_of(all_nodes(), lane, request)
  end
  local open_one = first_fit('+', lane, request)
  local warm_one = first_fit('w' .. lane.key .. '\1', lane, request)
  if open_one and warm_one then
    return better(warm_one, open_one) and warm_one or open_one
  elseif open_one or warm_one then
    return open_one or warm_one
  end
  -- The nodes with the most room, where the first looks met only full ones.
  local roomy = redis.call('ZRANGE', open_key, '[r', '(s', 'BYLEX', 'LIMIT', 0, LOOK_MAX)
  for i, member in ipairs(roomy) do
    roomy[i] = string.sub(member, 18)
  end
  return best_of(roomy, lane, request)
end

local function find_any(request)
  local best = nil
  for _, lane in ipairs(request.lanes) do
    local found = find(lane, request)
    if found and (not best or better(found, best)) then
      best = found
    end
  end
  return best
end
