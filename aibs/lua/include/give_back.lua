-- Include: node
-- Exports: lease_of lease_in tombstone tombstone_of vacate forget_lease give_back_now
-- Leases as stored, and what every way to end one has in common.
local TOMBSTONE_MS = 600000

local function lease_of(lease_id)
  local text = redis.call('HGET', leases_key, lease_id)
  return text and cjson.decode(text) or nil, text
end

-- What is known of a request, as one line: `lease HASH …`, `queued HASH`, or a tombstone,
-- `ended HASH UNTIL HOW LEASE TOKEN CALL`, with - for what there is not.
local function tombstone(request_key, hash, how, lease_id, token, call_id)
  local till = int_text(now + TOMBSTONE_MS)
  redis.call('HSET', requests_key, request_key, table.concat({ 'ended', hash, till, how,
    lease_id or '-', token or '-', call_id and call_id ~= '' and call_id or '-' }, ' '))
  redis.call('ZADD', ended_until_key, till, request_key)
end

local function tombstone_of(line)
  local hash, till, how, lease_id, token, call_id =
    string.match(line or '', '^ended (%S+) (%d+) (%S+) (%S+) (%S+) (%S+)$')
  if hash and tonumber(till) > now then
    return { hash = hash, how = how, lease_id = lease_id, token = token, call_id = call_id }
  end
  return nil
end

-- A living lease, as the line of its request says; nil where it is not one.
local function lease_in(line)
  local hash, lease_id, token, acquired_at, drain_ms, weight, params, node_id, base_url, key =
    string.match(line or '',
      '^lease (%S+) (%S+) (%d+) (%d+) (%d+) (%d+) (%d+) (%S+) (%S+) (%S+)$')
  return hash and { request_hash = hash, lease_id = lease_id, token = token,
    acquired_at_ms = tonumber(acquired_at), drain_ms = tonumber(drain_ms),
    weight_bytes = tonumber(weight), params = tonumber(params), node_id = node_id,
    base_url = base_url, key = key } or nil
end

-- Takes the lease off its node: at once, or once its slot has drained.
-- A model that a lease may have loaded since the last poll: there until a later poll tells. Warm
-- only where its holder says that the work was done.
local function leave_behind(node, lease, outcome)
  local held = node.own and node.own[lease.key]
  if not held then
    node.own = node.own or {}
    node.own[lease.key] = { charge = lease.weight_bytes, since = now, maybe = true }
    held = node.own[lease.key]
    touch(lease.node_id)
  end
  if held.maybe and outcome == 'completed' then
    held.maybe = nil
    touch(lease.node_id)
  end
end

local function vacate(lease, drain_ms, outcome)
  local node = load_node(lease.node_id)
  -- A node that left the fleet, or moved, took its slots with it.
  if not node or node.base_url ~= lease.base_url then
    return nil
  end
  if node.going then
    for key, going in pairs(node.going) do
      if going.lease_id == lease.lease_id then
        node.going[key] = nil
        -- Gone or not: the next poll tells.
        if node.own and node.own[key] then
          node.own[key].maybe = true
          touch(lease.node_id)
        end
      end
    end
    if next(node.going) == nil then
      node.going = nil
    end
  end
  if node.reserved and node.reserved.since then
    node.reserved.since[lease.lease_id] = nil
  end
  if drain_ms then
    node.drains = node.drains or {}
    node.drains[#node.drains + 1] = { id = lease.lease_id, at = now, till = now + drain_ms,
      key = lease.key, weight = lease.weight_bytes, params = lease.params }
  else
    give_back(node, lease.key, lease.weight_bytes, lease.params)
    leave_behind(node, lease, outcome)
    free_something()
  end
  touch_use(lease.node_id)
  return node
end

-- Removes what is kept of a living lease. The event is appended before.
local function forget_lease(lease, request_key, how, call_id)
  redis.call('HDEL', leases_key, lease.lease_id)
  redis.call('ZREM', deadlines_key, lease.lease_id)
  redis.call('HDEL', marks_key, 'beat|' .. lease.lease_id, 'loading|' .. lease.lease_id,
    'revoked|' .. lease.lease_id)
  tombstone(request_key, lease.request_hash, how, lease.lease_id, lease.token, call_id)
end

-- A living lease given back by its holder. `names_on` tells as a JSON list who may go now.
local function give_back_now(lease, request_key, outcome, call_id, names_on)
  local held_ms = math.max(0, now - lease.acquired_at_ms)
  local node = vacate(lease, nil, outcome)
  local names = names_on and names_on(lease.node_id, node) or '[]'
  append('LeaseReleased', 1, nil, lease.token, '{"lease_id":"' .. lease.lease_id
    .. '","node_id":"' .. lease.node_id .. '","request_key":' .. json_text(request_key)
    .. ',"outcome":"' .. outcome .. '","held_ms":' .. int_text(held_ms) .. ',"call_id":"'
    .. call_id .. '","next":' .. names .. '}')
  forget_lease(lease, request_key, outcome, call_id)
  return { 'ok', int_text(now), int_text(held_ms) }, node
end
