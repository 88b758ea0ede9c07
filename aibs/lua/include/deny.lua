-- Include: choose turn
-- Exports: REASONS_MAX DENIAL_WINDOW_MS reasons count_denials counted_denial log_denial
-- The reasons of a refusal: each node's, and the one that is nearest to a grant.
local REASONS_MAX = 16
local DENIAL_WINDOW_MS = 10000
local DENIALS_MAX = 256
local NEARNESS = { reserved = 1, draining = 2, no_slot = 3, no_memory = 4, node_loading = 5,
  unaccounted_resident = 6, pool_recovering = 7, stale_residency = 8, node_tripped = 9,
  node_unhealthy = 10, node_cordoned = 11, affinity = 12 }

local function reason_text(one)
  return '{"node_id":' .. json_text(one.node_id) .. ',"reason":' .. json_text(one.reason)
    .. ',"missing_bytes":' .. json_int(one.missing) .. ',"wait_ms":' .. json_int(one.wait)
    .. ',"why":' .. json_text(one.why) .. '}'
end

-- Every node that was looked at, or all of them: the nearest refusal of each node, and overall.
local function reasons(request, node_ids)
  local list = {}
  for _, node_id in ipairs(node_ids) do
    local nearest = nil
    for _, lane in ipairs(request.lanes) do
      look_at(node_id, lane, request)
      local one = looked[lane.worker_id][node_id]
      if one and (not nearest or NEARNESS[one.reason] < NEARNESS[nearest.reason]) then
        nearest = one
      end
    end
    list[#list + 1] = nearest
  end
  table.sort(list, function(a, b)
    local near_a, near_b = NEARNESS[a.reason], NEARNESS[b.reason]
    return near_a < near_b or (near_a == near_b and a.node_id < b.node_id)
  end)
  local texts, others = {}, {}
  local wait = nil
  for i, one in ipairs(list) do
    if i <= REASONS_MAX then
      texts[i] = reason_text(one)
    else
      others[one.reason] = (others[one.reason] or 0) + 1
    end
    if one.wait and (not wait or one.wait < wait) then
      wait = one.wait
    end
  end
  local counted = {}
  for reason, number in pairs(others) do
    counted[#counted + 1] = json_text(reason) .. ':' .. json_int(number)
  end
  table.sort(counted)
  return list[1] and list[1].reason or 'stale_residency', '[' .. table.concat(texts, ',') .. ']',
    '{' .. table.concat(counted, ',') .. '}', wait
end

local function count_denials(field, held)
  local since, count, rest = string.match(held, '^(%d+) (%d+) (.*)$')
  if tonumber(count) > 0 then
    local environment, lane, reason = string.match(field, '^(.-)|(.*)|(.-)$')
    append('DenialsCounted', 1, nil, nil, '{"environment":' .. json_text(environment)
      .. ',"lane":' .. json_text(lane) .. ',"reason":' .. json_text(reason)
      .. ',"count":' .. json_int(tonumber(count)) .. ',"since_ms":' .. since .. '}')
  end
  return tonumber(since), tonumber(count), rest
end

-- The window of an equal denial, if it is open: counts one more, and answers its reasons.
local function counted_denial(field)
  local held = redis.call('HGET', denials_key, field)
  if not held then
    return nil
  end
  local since, count, rest = string.match(held, '^(%d+) (%d+) (.*)$')
  since = tonumber(since)
  if now - since >= DENIAL_WINDOW_MS or now < since then
    return nil
  end
  redis.call('HSET', denials_key, field, int_text(since) .. ' '
    .. int_text(tonumber(count) + 1) .. ' ' .. rest)
  return rest
end

local function log_denial(field, request, reason, texts, others)
  local held = redis.call('HGET', denials_key, field)
  if held then
    count_denials(field, held)
  elseif redis.call('HLEN', denials_key) >= DENIALS_MAX then
    local first = redis.call('HSCAN', denials_key, '0', 'COUNT', 1)[2]
    for i = 1, #first, 2 do
      count_denials(first[i], first[i + 1])
      redis.call('HDEL', denials_key, first[i])
    end
  end
  append('LeaseDenied', 1, nil, nil, '{"environment":' .. json_text(request.environment)
    .. ',"requester":' .. json_text(request.requester)
    .. ',"request_id":' .. json_text(request.request_id) .. ',"lane":' .. json_text(request.lane)
    .. ',"reason":' .. json_text(reason) .. ',"reasons":' .. texts .. ',"others":' .. others .. '}')
  redis.call('HSET', denials_key, field, int_text(now) .. ' 0 ' .. texts .. others)
end
