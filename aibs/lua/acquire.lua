-- Places a request on a node, lets it wait, or says why not. The same request again gets the first
-- answer: its lease, or its place in the queue. `lease_id` is taken if it is granted now; `identity`
-- is the inside of a JSON object: what the lease says of the request; `lane` names what is asked for;
-- `avoid` is a JSON list of nodes that it must not get; `wait_ms` 0 does not wait.
-- Include: pool deny wait grant
-- Keys: pool owner log leases deadlines drains requests ended_until capacity open trips lanes waiters heads reservations reserved queue_high queue_normal queue_low places tried counts denials declared marks
-- Args: actor environment requester request_id request_key request_hash identity lease_id lane avoid class ttl_ms:int wait_ms:int staleness_ms:int drain_ms:int grace_ms:int swap_min_ms:int swap_max_ms:int queue_max:int known_fence:int
-- Replies: granted queued denied conflict ended pool_missing pool_version
-- Events: LeaseAcquired LeaseDenied DenialsCounted LeaseQueued WaitEnded NodeReserved ReservationEnded LeaseExpired LeaseReaped NodeTripped NodeRestored PoolSuspect PoolReopened OwnerExpired
local REAP_MAX = 16
local ALL_MAX = 64

local avoids = avoid ~= '[]' and set_of(cjson.decode(avoid)) or nil
local refusal = read_pool()
if refusal then
  return refusal
end
mind_fence(known_fence, pool_fence)

local function answer_lease(id)
  local _, text = lease_of(id)
  local deadline = redis.call('ZSCORE', deadlines_key, id)
  return { 'granted', int_text(now), deadline, text }
end

-- What is known of the request: nil where nothing is.
local function known()
  local held = redis.call('HGET', requests_key, request_key)
  local ended = tombstone_of(held)
  if ended then
    if ended.hash ~= request_hash and ended.hash ~= '-' then
      return { 'conflict' }
    end
    -- Who comes back after the end of its wait is told why it got nothing.
    return ended.how ~= 'timed_out' and { 'ended', ended.how } or nil, true
  end
  local kind, hash, id = string.match(held or 'ended -', '^(%S+) (%S+) ?(%S*)')
  if kind == 'ended' then
    return nil
  end
  if hash ~= request_hash then
    return { 'conflict' }
  end
  if kind ~= 'queued' then
    if tonumber(redis.call('ZSCORE', deadlines_key, id)) <= now then
      local how = end_overdue(id, tonumber(redis.call('ZSCORE', deadlines_key, id)))
      flush_nodes()
      return { 'ended', how }
    end
    return answer_lease(id)
  end
  return nil
end

local answer, timed_out = known()
if answer then
  return answer
end

local waiter = waiter_of(request_key) or nil
if waiter and waiter.wait_deadline_ms > now then
  keep_place(waiter, grace_ms)
end
reap_overdue(REAP_MAX)

local request = waiter or { key = request_key, class = class, rank = RANKS[class],
  arrival_ms = now, number = MAX_INT, head_ms = false, avoids = avoids }
request.environment, request.requester, request.request_id = environment, requester, request_id
request.lane = lane
mind_the_queue(request)

local function no_owner()
  local term_held = redis.call('HMGET', owner_key, 'owner', 'deadline_ms')
  return (term_held[1] or '') == '' or tonumber(term_held[2] or 0) <= now
end

local function denied(reason, texts, others, retry_after)
  flush_nodes()
  return { 'denied', int_text(now), reason, texts, others,
    retry_after and int_text(retry_after) or '', no_owner() and '1' or '' }
end

local function deny(reason, node_ids)
  local field = environment .. '|' .. lane .. '|' .. reason
  local held = counted_denial(field)
  if held and #node_ids > REASONS_MAX and not request.avoids then
    local texts, others = string.match(held, '^(%[.*%])({.*})$')
    return denied(reason, texts, others)
  end
  local _, texts, others, wait = reasons(request, node_ids)
  if not held then
    log_denial(field, request, reason, texts, others)
  end
  return denied(reason, texts, others, wait)
end

local function deny_flatly(reason)
  local field = environment .. '|' .. lane .. '|' .. reason
  if not counted_denial(field) then
    log_denial(field, request, reason, '[]', '{}')
  end
  return denied(reason, '[]', '{}')
end

-- A wait is over at its deadline; the one who asks is told at once.
if timed_out or (waiter and waiter.wait_deadline_ms <= now) then
  local lanes = lanes_of(lane)
  local reason, texts, others = 'wait_timeout', '[]', '{}'
  if lanes then
    request.lanes = lanes
    local _, first, rest = reasons(request, lanes[1].nodes or redis.call('HKEYS', declared_key))
    texts, others = first, rest
  end
  if waiter then
    end_wait(waiter, 'timed_out')
  end
  sweep_places(SWEEP_MAX)
  return denied(reason, texts, others)
end
sweep_places(SWEEP_MAX)

-- Refused a moment ago, and nothing came free since: the same again.
local tried = waiter and redis.call('HGET', tried_key, request_key)
if tried then
  local frees, at, why = string.match(tried, '^(%d+) (%d+) (%S+)$')
  if tonumber(frees) == pool_frees and now >= tonumber(at)
      and now - tonumber(at) <= TRIED_FOR_MS then
    flush_nodes()
    return { 'queued', int_text(now), int_text(standing(waiter)), why, '[]', '{}',
      int_text(waiter.wait_deadline_ms), no_owner() and '1' or '' }
  end
end

if redis.call('EXISTS', declared_key) == 0 then
  return deny_flatly('stale_residency')
end
local lanes, never = lanes_of(lane)
if not lanes then
  if waiter then
    end_wait(waiter, 'refused')
  end
  return deny_flatly(never)
end
request.lanes = lanes

local function grant_now(found)
  local queue_ms, passed = 0, pool_waiting > 0 and passed_by(request) or {}
  if waiter then
    queue_ms = math.max(0, now - waiter.arrival_ms)
    end_wait(waiter, 'granted')
  end
  return grant(found, request, queue_ms, json_names(passed),
    json_names(waiter and next_to_look() or {}))
end

local found = find_any(request)
if found then
  return grant_now(found)
end

-- Nothing found. Beyond a few nodes only those that were looked at tell their reason, until the
-- answer is final.
local function declared_ids()
  local ids = redis.call('HKEYS', declared_key)
  table.sort(ids)
  return ids
end

local function nodes_to_tell(final)
  if lanes[1].nodes and #lanes == 1 and #lanes[1].nodes <= ALL_MAX then
    return lanes[1].nodes
  end
  if final or redis.call('HLEN', declared_key) <= ALL_MAX then
    return declared_ids()
  end
  local ids = {}
  for _, seen in pairs(looked) do
    for node_id in pairs(seen) do
      ids[#ids + 1] = node_id
    end
  end
  return #ids > 0 and ids or declared_ids()
end

local function refuse_finally()
  local node_ids = nodes_to_tell(true)
  if #node_ids > ALL_MAX then
    -- The last look is at every node: the bounded ones may have missed the only one that fits.
    for _, one in ipairs(lanes) do
      local late = best_of(node_ids, one, request)
      if late then
        return grant_now(late)
      end
    end
  end
  local reason = reasons(request, node_ids)
  return deny(reason, node_ids)
end

-- Whether no node is left that it might get: no waiting helps.
local function avoids_all()
  for _, one in ipairs(request.avoids and lanes or {}) do
    for _, node_id in ipairs(one.nodes or redis.call('HKEYS', declared_key)) do
      if may_get(request, node_id) then
        return false
      end
    end
  end
  return request.avoids ~= nil
end

local function enqueue()
  pool_arrivals = pool_arrivals + 1
  local last = redis.call('ZRANGE', QUEUES[class], -1, -1, 'WITHSCORES')
  local arrival = math.max(now, tonumber(last[2] or 0))
  local member = string.format('%016d:', pool_arrivals) .. lane
    .. (avoids and '\2' .. avoid or '') .. '\1' .. request_key
  local keys = {}
  for i, one in ipairs(lanes) do
    keys[i] = '{"worker_id":' .. json_text(one.worker_id) .. ',"key":' .. json_text(one.key) .. '}'
  end
  local text = '{' .. identity .. ',"lane":' .. json_text(lane)
    .. ',"member":' .. json_text(member) .. ',"number":' .. json_int(pool_arrivals)
    .. ',"arrival_ms":' .. json_int(arrival) .. ',"wait_deadline_ms":' .. json_int(now + wait_ms)
    .. ',"ttl_ms":' .. json_int(ttl_ms) .. ',"model":' .. json_text(lanes[1].model)
    .. ',"lanes":[' .. table.concat(keys, ',') .. '],"avoid":' .. avoid .. '}'
  local reason, texts, others = reasons(request, nodes_to_tell(false))
  append('LeaseQueued', 1, nil, nil, '{"waiter":' .. text .. ',"reason":' .. json_text(reason)
    .. ',"reasons":' .. texts .. ',"others":' .. others .. '}')
  redis.call('HSET', pool_key, 'arrivals', int_text(pool_arrivals))
  redis.call('HSET', waiters_key, request_key, text)
  redis.call('ZADD', QUEUES[class], int_text(arrival), member)
  redis.call('HSET', requests_key, request_key, 'queued ' .. request_hash)
  waiters_read[request_key] = nil
  order_read = nil
  local added = waiter_of(request_key)
  count_waiter(added, 1)
  note_head(class)
  added.lanes = lanes
  mind_the_queue(added)
  keep_place(added, grace_ms)
  return added
end

if not waiter then
  if wait_ms == 0 or avoids_all() then
    return refuse_finally()
  end
  local mine = tonumber(redis.call('HGET', counts_key, 'env|' .. environment) or 0)
  if pool_waiting >= queue_max or mine >= math.max(1, math.floor(queue_max / 4)) then
    return deny_flatly('queue_full')
  end
  waiter = enqueue()
end

if not redis.call('HGET', reserved_key, request_key)
    or redis.call('HGET', reservations_key, redis.call('HGET', reserved_key, request_key))
    ~= request_key then
  local place = soonest(waiter, nodes_to_tell(false))
  if place then
    set_reservation(place.node_id, place.node, waiter, place.lane, place.weight)
  end
end
local reason, texts, others = reasons(waiter, nodes_to_tell(false))
if not claimed then
  redis.call('HSET', tried_key, request_key, int_text(pool_frees) .. ' ' .. int_text(now) .. ' '
    .. reason)
end
flush_nodes()
return { 'queued', int_text(now), int_text(standing(waiter)), reason, texts, others,
  int_text(waiter.wait_deadline_ms), no_owner() and '1' or '' }
