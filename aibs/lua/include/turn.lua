-- Include: fit queue lanes
-- Exports: TRIED_FOR_MS mind_the_queue ahead_of passed_by next_to_look worth_a_look may_take next_on json_names
-- Whose turn it is on a node: what those ahead in the queue may still take is theirs.
local NEXT_MAX = 8
local NAMED_AFTER_A_GRANT = 2
-- What time alone mends is not counted: a refusal is worth so much.
local TRIED_FOR_MS = 1000

-- A copy deep enough to try leases on.
local function imagine(node)
  local copy = {}
  for name, value in pairs(node) do
    copy[name] = value
  end
  if node.m then
    copy.m = {}
    for key, entry in pairs(node.m) do
      copy.m[key] = { unpack(entry) }
    end
  end
  if node.reserved then
    copy.reserved = { request = node.reserved.request, key = node.reserved.key,
      weight = node.reserved.weight, since = {} }
    for lease_id, lease in pairs(node.reserved.since or {}) do
      copy.reserved.since[lease_id] = lease
    end
  end
  return copy
end

local function imagine_lease(node_id, node, lane, request)
  local weight = weight_on(node, lane)
  if node.reserved and node.reserved.request ~= request.key then
    node.reserved.since[request.key] = { key = lane.key, weight = weight }
  end
  take(node, lane.key, weight, lane.params)
end

-- Whether the waiter for whom a node is reserved stands before the request.
local function stands_before(request_key, request)
  return is_before(waiter_of(request_key), request)
end

local function lanes_for(request)
  if not request.lanes then
    request.lanes, request.after = lanes_of(request.lane) or {}, stands_before
    request.waits = head_at
  end
  return request.lanes
end

local function fitting_lane(node_id, node, request)
  for _, lane in ipairs(lanes_for(request)) do
    if (not lane.allowed or lane.allowed[node_id])
        and not fit(node_id, node, lane, request) then
      return lane
    end
  end
  return nil
end

local function warm_for(node, request)
  for _, lane in ipairs(lanes_for(request)) do
    if warm_on(node, lane.key) then
      return true
    end
  end
  return false
end

-- A waiter may be passed on a node by one of its class that finds its model there, for as long as
-- it has not stood first for too long, and never where the node is reserved for it.
local function passable(node, waiter)
  return not warm_for(node, waiter)
    and not (head_at(waiter) and now - head_at(waiter) >= swap_max_ms)
    and not (node.reserved and node.reserved.request == waiter.key)
end

-- Whether a model that is warm on the node has waiters at all: else no waiter passes another.
local function grouping_matters(node)
  for key in pairs(node.own or {}) do
    if redis.call('HEXISTS', counts_key, 'model|' .. key) == 1 then
      return true
    end
  end
  for key in pairs(node.m or {}) do
    if redis.call('HEXISTS', counts_key, 'model|' .. key) == 1 then
      return true
    end
  end
  return false
end

local function order_at(node, list)
  local order = {}
  for _, request in ipairs(list) do
    local at = #order + 1
    if warm_for(node, request) then
      while at > 1 and passable(node, order[at - 1])
          and effective_rank(order[at - 1]) == effective_rank(request) do
        at = at - 1
      end
    end
    table.insert(order, at, request)
  end
  return order
end

-- The waiters ahead of a request, in order; at most as many as one look may walk.
local function ahead_of(request)
  local list = {}
  for _, waiter in ipairs(in_order()) do
    if waiter.key == request.key or not is_before(waiter, request) then
      break
    end
    list[#list + 1] = waiter
  end
  return list
end

-- The waiters that may not be passed by the request on the node, in order: those ahead of it, but
-- for the ones that it may pass; and those behind that may pass it.
local function preceding(node_id, node, request)
  local ahead, behind, placed = {}, {}, false
  for _, waiter in ipairs(wanting(node_id)) do
    if waiter.key == request.key then
      placed = true
    elseif placed or is_before(request, waiter) then
      placed = true
      behind[#behind + 1] = waiter
    else
      ahead[#ahead + 1] = waiter
    end
  end
  local finds_it = warm_for(node, request)
  -- Who only comes now is not counted among the waiters yet.
  if not finds_it and not grouping_matters(node) then
    return ahead
  end
  local rank = effective_rank(request)
  if finds_it then
    local list, from = {}, #ahead
    while from > 0 and effective_rank(ahead[from]) == rank
        and (warm_for(node, ahead[from]) or passable(node, ahead[from])) do
      from = from - 1
    end
    for at, waiter in ipairs(ahead) do
      if at <= from or warm_for(node, waiter) then
        list[#list + 1] = waiter
      end
    end
    return list
  end
  if passable(node, request) then
    for _, waiter in ipairs(behind) do
      local warm = warm_for(node, waiter)
      if effective_rank(waiter) ~= rank or not (warm or passable(node, waiter)) then
        break
      elseif warm then
        ahead[#ahead + 1] = waiter
      end
    end
  end
  return ahead
end

-- When each waiter was last refused for want of room, all of them read at once.
local function read_tries()
  local list, keys = in_order(), {}
  for i, waiter in ipairs(list) do
    keys[i] = waiter.key
  end
  if #keys == 0 then
    return
  end
  for i, held in ipairs(redis.call('HMGET', tried_key, unpack(keys))) do
    local frees, at = string.match(held or '', '^(%d+) (%d+) ')
    list[i].tried, list[i].tried_at = tonumber(frees or -1), tonumber(at or 0)
  end
end

local function worth_a_look(waiter)
  if waiter.tried == nil then
    read_tries()
  end
  if waiter.tried == nil then
    return true
  end
  return waiter.tried ~= pool_frees or now - waiter.tried_at > TRIED_FOR_MS
end

-- Whether nobody ahead may take what the request would take of this node.
local function may_take(node_id, node, lane, request)
  if pool_waiting == 0 then
    return true
  end
  local list = preceding(node_id, node, request)
  if #list == 0 then
    return true
  end
  local virtual = imagine(node)
  for _, other in ipairs(list) do
    if virtual.slots - virtual.used <= 0 then
      return false
    end
    if worth_a_look(other) then
      local taken = fitting_lane(node_id, virtual, other)
      if taken then
        imagine_lease(node_id, virtual, taken, other)
      end
    end
  end
  return not fit(node_id, virtual, lane, request)
end

-- From now on the request minds the queue.
local function mind_the_queue(request)
  request.after, request.turn = stands_before, may_take
  request.waits = request.arrival_ms and head_at or nil
end

-- The waiters that may go on the node now.
local function next_on(node_id, node)
  local names = {}
  if not node or not node.slots or pool_waiting == 0 then
    return names
  end
  local virtual, list = imagine(node), wanting(node_id)
  if grouping_matters(node) then
    list = order_at(node, list)
  end
  for _, waiter in ipairs(list) do
    if #names == NEXT_MAX or virtual.slots - virtual.used <= 0 then
      break
    end
    local lane = fitting_lane(node_id, virtual, waiter)
    if lane then
      imagine_lease(node_id, virtual, lane, waiter)
      names[#names + 1] = waiter.key
    end
  end
  return names
end

local function json_names(names)
  local texts = {}
  for i, name in ipairs(names) do
    texts[i] = json_text(name)
  end
  return '[' .. table.concat(texts, ',') .. ']'
end

-- Nodes with a slot that might be taken; of a large fleet more than any request can avoid.
local function roomy()
  local list = {}
  if pool_nodes > SMALL_FLEET then
    local held = redis.call('ZRANGE', open_key, '[+', '(,', 'BYLEX', 'LIMIT', 0, AVOID_MAX + 1)
    for i, member in ipairs(held) do
      list[i] = string.sub(member, GROUP_LENGTH + 2)
    end
    return list
  end
  for _, node_id in ipairs(all_nodes()) do
    local node = load_node(node_id)
    if node.slots and node.slots - node.used > 0 then
      list[#list + 1] = node_id
    end
  end
  return list
end

-- The first waiters who may find room since something came free: asked when a waiter was granted,
-- once its lease is taken.
local function next_to_look()
  local names, node_ids = {}, pool_waiting > 0 and roomy() or {}
  if #node_ids > 0 then
    for _, waiter in ipairs(in_order()) do
      if #names == NAMED_AFTER_A_GRANT then
        break
      end
      if may_get_one_of(waiter, node_ids) and worth_a_look(waiter) then
        names[#names + 1] = waiter.key
      end
    end
  end
  return names
end

-- Waiters that stand before it: it found its model resident, or they had no use of the node.
local function passed_by(request)
  local names = {}
  for i, other in ipairs(ahead_of(request)) do
    if i > NEXT_MAX then
      break
    end
    names[i] = other.key
  end
  return names
end
