-- Include: json
-- Exports: lanes_read lanes_of AVOID_MAX set_of may_get may_get_one_of
-- The workers that a request may use, as the declared fleet says, and the nodes that it avoids.
local lanes_read = {}
local AVOID_MAX = 8

-- A list of lanes; or nil and the denial that no time will mend.
local function lanes_of(name)
  local lanes = lanes_read[name]
  if lanes == nil then
    local text = redis.call('HGET', lanes_key, name)
    lanes = text and cjson.decode(text) or 'unknown_model'
    if type(lanes) == 'table' then
      local placeable, fitting = false, false
      for _, lane in ipairs(lanes) do
        lane.allowed = nil
        if lane.nodes then
          lane.allowed = {}
          for _, node_id in ipairs(lane.nodes) do
            lane.allowed[node_id] = true
          end
        end
        placeable = placeable or lane.most > 0
        fitting = fitting or lane.weight <= lane.most
      end
      if not placeable then
        lanes = 'affinity'
      elseif not fitting then
        lanes = 'never_fits'
      end
    end
    lanes_read[name] = lanes
  end
  if type(lanes) == 'string' then
    return nil, lanes
  end
  return lanes
end

-- A list of node ids as a set; nil where it is empty, which is the common case.
local function set_of(list)
  local set = nil
  for _, node_id in ipairs(list or {}) do
    set = set or {}
    set[node_id] = true
  end
  return set
end

-- A request that avoids a node must not get it, whatever room is there.
local function may_get(request, node_id)
  return not request.avoids or not request.avoids[node_id]
end

local function may_get_one_of(request, node_ids)
  for _, node_id in ipairs(node_ids) do
    if may_get(request, node_id) then
      return true
    end
  end
  return false
end
