-- Include: node
-- Exports: weight_on to_unload closed lacking fit
-- Whether a node may take a request now, and the first reason why not.
local OBSERVED_WEIGHT_MS = 86400000

local function weight_on(node, lane)
  local seen = node.seen and node.seen[lane.key]
  if seen and seen.weight > lane.weight and ((node.own and node.own[lane.key])
      or seen.at >= now - OBSERVED_WEIGHT_MS) then
    return seen.weight, 'observed'
  end
  return lane.weight, 'declared'
end

-- What a lease of that model adds to the node's leased bytes.
local function added_bytes(node, key, weight)
  local entry = node.m and node.m[key]
  return entry and math.max(0, weight - model_weight(entry)) or weight
end

-- The idle own models to unload before the model is loaded, largest first so that they are fewest.
local NONE = {}

local function idle(node, own_key)
  return not (node.m and node.m[own_key]) and not (node.busy and node.busy[own_key])
    and not (node.going and node.going[own_key])
end

local function to_unload(node, key, weight)
  if not node.own then
    return NONE
  end
  local occupied = foreign_for(node, key) + leased_bytes(node) + weight
  for own_key, own in pairs(node.own) do
    if own_key ~= key and idle(node, own_key) then
      occupied = occupied + own.charge
    end
  end
  if occupied <= node.budget then
    return NONE
  end
  local candidates, list = {}, {}
  for own_key in pairs(node.own) do
    if own_key ~= key and idle(node, own_key) then
      candidates[#candidates + 1] = own_key
    end
  end
  table.sort(candidates, function(a, b)
    local charge_a, charge_b = node.own[a].charge, node.own[b].charge
    return charge_a > charge_b or (charge_a == charge_b and a < b)
  end)
  for _, own_key in ipairs(candidates) do
    if occupied <= node.budget then
      break
    end
    list[#list + 1] = own_key
    occupied = occupied - node.own[own_key].charge
  end
  return list
end

-- Whether the node's evidence may be trusted: the reasons that no lease's end can mend.
local function closed(node, key, staleness_ms)
  if cordoned(node) then
    return 'node_cordoned', nil, node.cordon > 0 and node.cordon - now or nil
  elseif tripped(node) then
    return 'node_tripped', nil, math.max(0, node.trip.reopen - now)
  elseif node.healthy == false then
    return 'node_unhealthy'
  elseif node.loading or (node.going and node.going[key]) then
    return 'node_loading'
  elseif node.observed_at > 0 and (pool_state ~= 'open' or node.epoch ~= pool_epoch) then
    return 'pool_recovering'
  elseif node.observed_at == 0 or not node.fingerprint or now < node.observed_at
      or now - node.observed_at > staleness_ms then
    return 'stale_residency'
  elseif node.unaccounted then
    return 'unaccounted_resident'
  end
  return nil
end

-- A younger request takes from a reserved node only what fits beside the one it is reserved for.
local function beside(node, key, weight)
  local sum, leases, counted = foreign_for(node, key) + node.reserved.weight, 0, {}
  counted[node.reserved.key] = true
  for _, lease in pairs(node.reserved.since or {}) do
    leases = leases + 1
    if not counted[lease.key] then
      counted[lease.key] = true
      sum = sum + lease.weight
    end
  end
  if not counted[key] then
    sum = sum + weight
  end
  return sum <= node.budget and leases + 2 <= node.slots
end

local function lacking(node, key, weight)
  return foreign_for(node, key) + leased_bytes(node) + added_bytes(node, key, weight) - node.budget
end

-- Whether anybody who may get the node waits for a model.
local function waited_for(node_id, key)
  local waiting = tonumber(redis.call('HGET', counts_key, 'model|' .. key) or 0)
  return waiting > 0
    and waiting > tonumber(redis.call('HGET', counts_key, 'avoid|' .. node_id .. '|' .. key) or 0)
end

-- A model that others wait for stays a while before it is swapped out for another.
local function stays_ms(node_id, node, key, weight, request)
  if warm_on(node, key) then
    return nil
  end
  for _, own_key in ipairs(to_unload(node, key, weight)) do
    local left = node.own[own_key].since + swap_min_ms - now
    if left > 0 and waited_for(node_id, own_key) then
      local head_ms = request.waits and request.waits(request)
      return not (head_ms and now - head_ms >= swap_max_ms) and left or nil
    end
  end
  return nil
end

-- The reason why not, bytes missing, and ms to wait where time alone mends it. `request` may pass
-- a reservation when it is older than the one it was made for.
local function fit(node_id, node, lane, request)
  if not node or not node.budget or not node.slots then
    return 'stale_residency'
  end
  local reason, missing, wait = closed(node, lane.key, staleness_ms)
  if reason then
    return reason, missing, wait
  end
  if node.slots - node.used <= 0 then
    local drains = node.drains and #node.drains or 0
    if node.slots - (node.used - drains) > 0 then
      local till = nil
      for _, drain in ipairs(node.drains) do
        till = math.min(till or drain.till, drain.till)
      end
      return 'draining', nil, math.max(0, till - now)
    end
    return 'no_slot'
  end
  local weight = weight_on(node, lane)
  missing = lacking(node, lane.key, weight)
  if missing > 0 then
    return 'no_memory', missing
  end
  local stays = stays_ms(node_id, node, lane.key, weight, request)
  if stays then
    return 'no_memory', nil, stays, 'stays'
  end
  if node.reserved and request.after and node.reserved.request ~= request.key
      and request.after(node.reserved.request, request)
      and not beside(node, lane.key, weight) then
    return 'reserved'
  end
  return nil
end
