-- Include: json
-- Exports: lanes_read lanes_of
-- The workers that a request may use, as the declared fleet says.
local lanes_read = {}

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
