-- Include: event json
-- Exports: USE SMALL_FLEET members all_nodes LEX_END GROUP_LENGTH records free_something model_weight take give_back settle load_node touch touch_use drop_record cordoned tripped foreign_for leased_bytes free_bytes resident_on warm_on unlist flush_nodes
-- What a decision reads of a node: one record, and the indexes that lead to it. A record is read
-- once, changed in memory, and written by `flush_nodes`, after the script's event. It is kept in two
-- packed parts, so that a lease rewrites what leases change, and not what polls saw.
local LEX_END = '\255'
-- A fleet so small is looked at whole, and needs no index.
local SMALL_FLEET = 8
local MAX_FREE = 9007199254740992
local GROUP_LENGTH = 32

local USE = '|use'

local records = {}
-- 'use' where only the part that leases change is to be written, 'all' where both are.
local dirty = {}
local freed = false

-- Waiters that were refused for want of room are worth another look from now on.
local function free_something()
  if not freed then
    freed = true
    pool_frees = pool_frees + 1
    pool_changes[#pool_changes + 1] = 'frees'
    pool_changes[#pool_changes + 1] = int_text(pool_frees)
  end
end

local function model_weight(entry)
  local weight = 0
  for i = 1, #entry, 2 do
    weight = math.max(weight, entry[i])
  end
  return weight
end

-- A model's entry lists each weight under which it was granted, and by how many leases.
local function take(node, key, weight, params)
  node.m = node.m or {}
  local entry = node.m[key]
  if not entry then
    entry = {}
    node.m[key] = entry
  end
  local at = nil
  for i = 1, #entry, 2 do
    if entry[i] == weight then
      at = i
    end
  end
  if at then
    entry[at + 1] = entry[at + 1] + 1
  else
    entry[#entry + 1], entry[#entry + 2] = weight, 1
  end
  node.used, node.params = node.used + 1, node.params + params
end

local function give_back(node, key, weight, params)
  local entry, kept = node.m and node.m[key] or {}, {}
  for i = 1, #entry, 2 do
    local leases = entry[i + 1] - (entry[i] == weight and 1 or 0)
    if leases > 0 then
      kept[#kept + 1], kept[#kept + 2] = entry[i], leases
    end
  end
  if node.m then
    node.m[key] = #kept > 0 and kept or nil
    if next(node.m) == nil then
      node.m = nil
    end
  end
  node.used, node.params = node.used - 1, node.params - params
  if #kept == 0 then
    -- The next poll to begin is the first that can tell our use of the model from another's.
    node.ended = node.ended or {}
    node.ended[key] = now
  end
end

-- A slot that ended without a release comes back once a later poll answered and the time passed. A
-- node that left the fleet is not polled, and given nothing before it was seen again: time is all.
local function settle(node_id, node)
  local left = {}
  for _, drain in ipairs(node.drains) do
    if (node.undeclared or node.observed_at > drain.at) and now >= drain.till then
      give_back(node, drain.key, drain.weight, drain.params)
      dirty[node_id] = dirty[node_id] or 'use'
      free_something()
    else
      left[#left + 1] = drain
    end
  end
  node.drains = #left > 0 and left or nil
end

local function unpacked(seen, use)
  local node = cmsgpack.unpack(seen)
  for name, value in pairs(cmsgpack.unpack(use)) do
    node[name] = value
  end
  return node
end

local function load_node(node_id)
  local node = records[node_id]
  if node == nil then
    local held = redis.call('HMGET', capacity_key, node_id, node_id .. USE)
    node = held[1] and unpacked(held[1], held[2]) or false
    records[node_id] = node
    if node and node.drains then
      settle(node_id, node)
    end
  end
  return node
end

-- The ids of every node that has a record, all of them read at once.
local function all_nodes()
  local held, seen, use, ids = redis.call('HGETALL', capacity_key), {}, {}, {}
  for i = 1, #held, 2 do
    local field = held[i]
    if string.sub(field, -#USE) == USE then
      use[string.sub(field, 1, -#USE - 1)] = held[i + 1]
    else
      seen[field] = held[i + 1]
      ids[#ids + 1] = field
    end
  end
  for _, node_id in ipairs(ids) do
    if records[node_id] == nil then
      local node = unpacked(seen[node_id], use[node_id])
      records[node_id] = node
      if node.drains then
        settle(node_id, node)
      end
    end
  end
  return ids
end

local function touch(node_id)
  dirty[node_id] = 'all'
end

local function touch_use(node_id)
  dirty[node_id] = dirty[node_id] or 'use'
end

local function drop_record(node_id)
  records[node_id] = false
  dirty[node_id] = nil
end

local function cordoned(node)
  return node.cordon ~= nil and (node.cordon == 0 or now < node.cordon)
end

local function tripped(node)
  return node.trip ~= nil and (now < node.trip.reopen or node.trip.probe ~= nil)
end

-- Whether a look may find the node at all; what passes with time alone is checked at the look.
local function open(node)
  return node.budget and node.slots and node.fingerprint and node.healthy ~= false
    and not node.loading and not node.unaccounted and node.observed_at > 0
    and not cordoned(node) and not tripped(node)
end

local function foreign_for(node, key)
  local foreign = node.foreign or 0
  if node.busy then
    for busy_key in pairs(node.busy) do
      if busy_key ~= key and not (node.m and node.m[busy_key]) then
        foreign = foreign + node.own[busy_key].charge
      end
    end
  end
  return foreign
end

local function leased_bytes(node)
  local sum = 0
  if node.m then
    for _, entry in pairs(node.m) do
      sum = sum + model_weight(entry)
    end
  end
  return sum
end

local function free_bytes(node)
  return node.budget - foreign_for(node, nil) - leased_bytes(node)
end

-- Whether the model was seen there, or its holder said that it is.
local function resident_on(node, key)
  local own = node.own and node.own[key]
  return own ~= nil and not own.maybe and not (node.going and node.going[key])
end

local function warm_on(node, key)
  return (node.m ~= nil and node.m[key] ~= nil) or resident_on(node, key)
end

-- Most free slots first, then the least parameters, then the most free bytes, then by name.
local function position(node_id, node)
  return string.format('%04d%012d%016d', math.max(0, 9999 - math.max(0, node.slots - node.used)),
    node.params, MAX_FREE - math.max(0, free_bytes(node))) .. node_id
end

local function members(node_id, node)
  if pool_nodes <= SMALL_FLEET or not open(node) then
    return {}
  end
  local place = position(node_id, node)
  if node.slots - node.used <= 0 then
    return { '-' .. place }
  end
  local list = { '+' .. place,
    string.format('r%016d', MAX_FREE - math.max(0, free_bytes(node))) .. node_id }
  if node.own then
    for key in pairs(node.own) do
      if not node.own[key].maybe and not (node.going and node.going[key])
          and not (node.m and node.m[key]) then
        list[#list + 1] = 'w' .. key .. '\1' .. place
      end
    end
  end
  if node.m then
    for key in pairs(node.m) do
      list[#list + 1] = 'w' .. key .. '\1' .. place
    end
  end
  return list
end

-- In any order of the models: an order that differs costs a rewrite, no more.
local function same_members(list, held)
  for i = 1, math.max(#list, #held) do
    if list[i] ~= held[i] then
      return false
    end
  end
  return true
end

local function packed_use(node)
  return cmsgpack.pack({ used = node.used, params = node.params, m = node.m, ended = node.ended,
    drains = node.drains, going = node.going, reserved = node.reserved, trip = node.trip,
    index = node.index })
end

local function packed_seen(node)
  local seen = {}
  for name, value in pairs(node) do
    seen[name] = value
  end
  seen.used, seen.params, seen.m, seen.ended, seen.drains = nil, nil, nil, nil, nil
  seen.going, seen.reserved, seen.trip, seen.index = nil, nil, nil, nil
  return cmsgpack.pack(seen)
end

local function save_node(node_id, node, part)
  local list, held = members(node_id, node), node.index or {}
  if not same_members(list, held) then
    if #held > 0 then
      redis.call('ZREM', open_key, unpack(held))
    end
    if #list > 0 then
      local scored = {}
      for i, member in ipairs(list) do
        scored[2 * i - 1], scored[2 * i] = 0, member
      end
      redis.call('ZADD', open_key, unpack(scored))
    end
    node.index = list
  end
  if part == 'use' then
    redis.call('HSET', capacity_key, node_id .. USE, packed_use(node))
  else
    redis.call('HSET', capacity_key, node_id, packed_seen(node), node_id .. USE, packed_use(node))
  end
end

-- A node that time alone made stale leaves the indexes when a look meets it; its next poll returns it.
local function unlist(node_id, node)
  if node.index and #node.index > 0 then
    redis.call('ZREM', open_key, unpack(node.index))
    node.index = {}
    redis.call('HSET', capacity_key, node_id .. USE, packed_use(node))
  end
end

local function flush_nodes()
  for node_id, part in pairs(dirty) do
    local node = records[node_id]
    if node and node.undeclared and node.used <= 0 then
      redis.call('HDEL', capacity_key, node_id, node_id .. USE)
    elseif node then
      save_node(node_id, node, part)
    end
  end
  if #pool_changes > 0 then
    redis.call('HSET', pool_key, unpack(pool_changes))
    pool_changes = {}
  end
  dirty = {}
end
