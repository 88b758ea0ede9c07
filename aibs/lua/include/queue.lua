-- Include: int json event lanes
-- Exports: RANKS QUEUES waiters_read order_read read_waiter head_at waiter_of effective_rank is_before in_order wanting standing note_head count_waiter
-- The waiters: their order, their places, and how they end.
local WALK_MAX = 64
local RANKS = { high = 0, normal = 1, low = 2 }
local CLASSES = { 'high', 'normal', 'low' }
local QUEUES = { high = queue_high_key, normal = queue_normal_key, low = queue_low_key }

local waiters_read = {}
local order_read = nil

-- What a waiter's document says beside its place in the order, read when it is needed.
local function read_waiter(waiter)
  if waiter.request_hash == nil then
    local document = cjson.decode(redis.call('HGET', waiters_key, waiter.key))
    for name, value in pairs(document) do
      waiter[name] = value
    end
    waiter.wanted, waiter.lanes = document.lanes, nil
  end
  return waiter
end

local function head_at(waiter)
  if waiter.head_ms == nil then
    local held = redis.call('HGET', heads_key, waiter.key)
    waiter.head_ms = held and tonumber(held) or false
  end
  return waiter.head_ms
end

-- A waiter by its request, whole; false where it does not wait.
local function waiter_of(request_key)
  local waiter = waiters_read[request_key]
  if waiter == nil then
    local text = redis.call('HGET', waiters_key, request_key)
    waiter = false
    if text then
      waiter = cjson.decode(text)
      waiter.key, waiter.rank = request_key, RANKS[waiter.class]
      waiter.wanted, waiter.lanes = waiter.lanes, nil
      waiter.avoids = set_of(waiter.avoid)
    end
    waiters_read[request_key] = waiter
  end
  return waiter and read_waiter(waiter)
end

-- A waiter rises one class each SWAP_MAX_WAIT.
local function effective_rank(waiter)
  local rank = waiter.effective
  if not rank then
    local risen = math.floor(math.max(0, now - waiter.arrival_ms) / swap_max_ms)
    rank = math.max(0, waiter.rank - risen)
    waiter.effective = rank
  end
  return rank
end

local function is_before(a, b)
  if not a then
    return false
  end
  local rank_a, rank_b = effective_rank(a), effective_rank(b)
  if rank_a ~= rank_b then
    return rank_a < rank_b
  end
  if a.arrival_ms ~= b.arrival_ms then
    return a.arrival_ms < b.arrival_ms
  end
  return a.number < b.number
end


-- The waiters of a class, first come first, as its list has them.
local function listed(class)
  local held, list = redis.call('ZRANGE', QUEUES[class], 0, WALK_MAX - 1, 'WITHSCORES'), {}
  for i = 1, #held, 2 do
    local number, lane, key = string.match(held[i], '^(%d+):([^\1]*)\1(.*)$')
    local waiter = waiters_read[key]
    if not waiter then
      local avoids, at = nil, string.find(lane, '\2', 1, true)
      if at then
        avoids, lane = set_of(cjson.decode(string.sub(lane, at + 1))), string.sub(lane, 1, at - 1)
      end
      waiter = { key = key, class = class, rank = RANKS[class], member = held[i], lane = lane,
        number = tonumber(number), arrival_ms = tonumber(held[i + 1]), avoids = avoids }
      waiters_read[key] = waiter
      -- Only the first of a class can have stood there.
      if i > 1 then
        waiter.head_ms = false
      end
    end
    list[#list + 1] = waiter
  end
  return list
end

-- The first waiters in the order of now.
local function in_order()
  if order_read then
    return order_read
  end
  local lists, list = {}, {}
  for _, class in ipairs(CLASSES) do
    local one = listed(class)
    if #one > 0 then
      lists[#lists + 1] = one
    end
  end
  if #lists <= 1 then
    order_read = lists[1] or {}
    return order_read
  end
  local at = { 1, 1, 1 }
  while #list < WALK_MAX do
    local first, from = nil, nil
    for i = 1, #lists do
      local waiter = lists[i][at[i]]
      if waiter and (not first or is_before(waiter, first)) then
        first, from = waiter, i
      end
    end
    if not first then
      break
    end
    list[#list + 1] = first
    at[from] = at[from] + 1
  end
  order_read = list
  return list
end

-- The first waiters, but for those that must not get the node.
local function wanting(node_id)
  local list = {}
  for _, waiter in ipairs(in_order()) do
    if may_get(waiter, node_id) then
      list[#list + 1] = waiter
    end
  end
  return list
end

-- How many wait before it, and one.
local function standing(waiter)
  local rank, ahead = effective_rank(waiter), 0
  for i, class in ipairs(CLASSES) do
    if class == waiter.class then
      ahead = ahead + redis.call('ZRANK', QUEUES[class], waiter.member)
    else
      -- Those that rose to a better class than its own, and the older ones of the same.
      local rises = RANKS[class] - rank
      local older = waiter.arrival_ms
      if rises < 0 then
        older = now
      elseif rises >= 0 then
        local risen = now - (rises + 1) * swap_max_ms
        local equal = math.min(older, now - rises * swap_max_ms)
        older = rank == 0 and equal or math.max(risen, equal)
      end
      ahead = ahead + redis.call('ZCOUNT', QUEUES[class], '-inf', int_text(older))
    end
  end
  return ahead + 1
end

local function note_head(class)
  local first = redis.call('ZRANGE', QUEUES[class], 0, 0)[1]
  if first then
    redis.call('HSETNX', heads_key, string.match(first, '\1(.*)$'), int_text(now))
  end
end

local function count(field, step)
  if redis.call('HINCRBY', counts_key, field, step) <= 0 then
    redis.call('HDEL', counts_key, field)
  end
end

local function count_waiter(waiter, step)
  pool_waiting = redis.call('HINCRBY', pool_key, 'waiting', step)
  count('env|' .. waiter.environment, step)
  for _, lane in ipairs(waiter.wanted) do
    count('model|' .. lane.key, step)
    for node_id in pairs(waiter.avoids or {}) do
      count('avoid|' .. node_id .. '|' .. lane.key, step)
    end
  end
end
