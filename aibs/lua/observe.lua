-- Records what polls saw. Each poll is judged alone: it must have begun under the living fence, of
-- this fleet and URL, later than the last one recorded, and recently enough to say anything. A good
-- one is stamped with its beginning by the server's clock; a failed one leaves the last stamp to age.
-- For each poll follow: node_id begun_fence seq base_url elapsed_ms outcome reason latency_ms
-- unaccounted models telemetry (outcome `ok` or `failed`; models a JSON list in canonical order;
-- empty telemetry leaves the last one).
-- Flags: allow-oom
-- Include: fence residency fleet
-- Keys: pool owner log rejections fleet declared nodes stamps samples capacity open weights reservations marks telemetry*
-- Args: actor owner fence:int fingerprint failure_threshold:int staleness_ms:int telemetry_ttl_ms:int samples_max:int samples_age_ms:int load_timeout_ms:int polls*
-- Replies: ok fenced fleet_mismatch pool_missing pool_version
-- Polls: ok duplicate older other_fence undeclared other_url too_late
-- Events: ResidencyObserved NodeHealthChanged ReservationEnded OwnerExpired FencedWriteRejected PoolSuspect
local GOOD_POLLS_TO_RETURN = 2
local LOG_EVERY_MS = 60000
local FIELDS = 11

local refusal = read_pool()
if refusal then
  return refusal
end
refusal = check_fence('observe', owner, fence)
if refusal then
  return refusal
end
local declared_fingerprint = redis.call('HGET', fleet_key, 'fingerprint')
if declared_fingerprint ~= fingerprint then
  return { 'fleet_mismatch', declared_fingerprint or '' }
end

local function parse(i)
  return {
    node_id = ARGV[i], begun_fence = int(ARGV[i + 1], 'begun_fence'), seq = int(ARGV[i + 2], 'seq'),
    base_url = ARGV[i + 3], elapsed_ms = math.max(0, int(ARGV[i + 4], 'elapsed_ms')),
    good = ARGV[i + 5] == 'ok', reason = ARGV[i + 6], latency_ms = int(ARGV[i + 7], 'latency_ms'),
    unaccounted = ARGV[i + 8] == '1', models_text = ARGV[i + 9], telemetry = ARGV[i + 10],
    models = cjson.decode(ARGV[i + 9]),
  }
end

-- Every poll is read before the first write: a malformed one must not leave its neighbours half done.
local polls = {}
for i = first_polls, #ARGV, FIELDS do
  polls[#polls + 1] = parse(i)
end

local function judge(poll, stamp)
  if poll.begun_fence ~= fence then
    return 'other_fence'
  end
  local node = redis.call('HGET', declared_key, poll.node_id)
  if not node then
    return 'undeclared'
  end
  if cjson.decode(node).base_url ~= poll.base_url then
    return 'other_url'
  end
  if stamp and stamp.fence == fence and stamp.seq >= poll.seq then
    return stamp.seq == poll.seq and 'duplicate' or 'older'
  end
  if poll.elapsed_ms > staleness_ms then
    return 'too_late'
  end
  return 'ok'
end

-- While a lease of ours loads a model there a node may not answer: not a failure, for so long.
local function loads_for_us(node_id)
  local held = redis.call('HGETALL', marks_key)
  for i = 1, #held, 2 do
    if string.sub(held[i], 1, 8) == 'loading|' then
      local since, where = string.match(held[i + 1], '^(%d+) (.*)$')
      if where == node_id and now - tonumber(since) <= load_timeout_ms then
        return true
      end
    end
  end
  return false
end

local function next_stamp(poll, stamp, moved)
  local next = {
    observed_at_ms = 0, own = nil, foreign = nil, unaccounted = false, good_in_row = 0,
    failed_in_row = 0, observed_fence = 0, fingerprint = '', logged_at_ms = 0, logged_fence = 0,
    epoch = 0, healthy = nil, reason = '', loading = false,
  }
  if stamp then
    for key, value in pairs(stamp) do
      next[key] = optional(value)
    end
  end
  next.seq, next.fence = poll.seq, fence
  if poll.good then
    next.observed_at_ms, next.observed_fence = now - poll.elapsed_ms, fence
    next.own, next.foreign = charges(poll.models)
    -- An own model that others use is theirs for now.
    next.own, next.foreign = next.own - moved, next.foreign + moved
    next.loading = false
    next.unaccounted, next.fingerprint, next.epoch = poll.unaccounted, fingerprint, pool_epoch
    if poll.unaccounted then
      next.foreign = nil
    end
    next.failed_in_row, next.good_in_row = 0, next.good_in_row + 1
    if next.healthy == nil or next.good_in_row >= GOOD_POLLS_TO_RETURN then
      next.healthy, next.reason = true, ''
    end
  elseif (poll.reason == 'timeout' or poll.reason == 'loading') and loads_for_us(poll.node_id) then
    next.loading = true
  else
    next.loading = false
    next.good_in_row, next.failed_in_row = 0, next.failed_in_row + 1
    if next.failed_in_row >= failure_threshold then
      next.healthy, next.reason = false, poll.reason
    end
  end
  return next
end

local function stamp_text(stamp, base_url)
  local healthy = 'null'
  if stamp.healthy ~= nil then
    healthy = json_bool(stamp.healthy)
  end
  return '{"observed_at_ms":' .. json_int(stamp.observed_at_ms)
    .. ',"observed_fence":' .. json_int(stamp.observed_fence)
    .. ',"fence":' .. json_int(stamp.fence) .. ',"seq":' .. json_int(stamp.seq)
    .. ',"fingerprint":' .. json_text(stamp.fingerprint) .. ',"base_url":' .. json_text(base_url)
    .. ',"healthy":' .. healthy .. ',"reason":' .. json_text(stamp.reason)
    .. ',"own":' .. json_int(stamp.own) .. ',"foreign":' .. json_int(stamp.foreign)
    .. ',"unaccounted":' .. json_bool(stamp.unaccounted)
    .. ',"good_in_row":' .. json_int(stamp.good_in_row)
    .. ',"failed_in_row":' .. json_int(stamp.failed_in_row)
    .. ',"loading":' .. json_bool(stamp.loading)
    .. ',"epoch":' .. json_int(stamp.epoch)
    .. ',"logged_at_ms":' .. json_int(stamp.logged_at_ms)
    .. ',"logged_fence":' .. json_int(stamp.logged_fence) .. '}'
end

-- The part of the node that the log tells: what ResidencyObserved and NodeHealthChanged last said.
local function node_text(node)
  return '{"base_url":' .. json_text(node.base_url) .. ',"healthy":' .. json_bool(node.healthy)
    .. ',"reason":' .. json_text(node.reason) .. ',"fingerprint":' .. json_text(node.fingerprint)
    .. ',"fence":' .. json_int(node.fence) .. ',"observed_at_ms":' .. json_int(node.observed_at_ms)
    .. ',"own":' .. json_int(node.own) .. ',"foreign":' .. json_int(node.foreign)
    .. ',"unaccounted":' .. json_bool(node.unaccounted) .. ',"models":' .. node.models_text
    .. ',"event_id":' .. json_text(node.event_id) .. '}'
end

local function read_node(node_id, base_url)
  local text = redis.call('HGET', nodes_key, node_id)
  if not text then
    return { base_url = base_url, healthy = false, reason = '', fingerprint = '', fence = 0,
      observed_at_ms = 0, unaccounted = false, models_text = '[]', known = false }
  end
  local node = cjson.decode(text)
  node.own, node.foreign = optional(node.own), optional(node.foreign)
  node.models_text = string.match(text, '"models":(.*),"event_id":"[%d-]+"}$')
  node.known = true
  return node
end

-- What a model weighs here by observation: the most while its digest and context stay the same.
local function remember_weight(place, node_id, key, model, observed_at)
  local field = node_id .. '|' .. key
  local text = redis.call('HGET', weights_key, field)
  local weight = optional(model.charge_bytes)
  if not weight or weight <= 0 then
    return
  end
  local digest, context = optional(model.digest), optional(model.context_length)
  if text then
    local held = cjson.decode(text)
    if optional(held.digest) == digest and optional(held.context) == context then
      weight = math.max(weight, held.weight)
    end
  end
  place.seen = place.seen or {}
  place.seen[key] = { weight = weight, at = observed_at }
  redis.call('HSET', weights_key, field, '{"weight":' .. json_int(weight) .. ',"seen_at_ms":'
    .. json_int(observed_at) .. ',"digest":' .. json_text(digest) .. ',"context":'
    .. json_int(context) .. '}')
end

local function log_observation(poll, node, stamp, busy, place)
  local data = '{"node_id":' .. json_text(poll.node_id)
    .. ',"base_url":' .. json_text(poll.base_url) .. ',"fingerprint":' .. json_text(fingerprint)
    .. ',"observed_at_ms":' .. json_int(stamp.observed_at_ms)
    .. ',"elapsed_ms":' .. json_int(poll.elapsed_ms)
    .. ',"latency_ms":' .. json_int(poll.latency_ms)
    .. ',"own_bytes":' .. json_int(stamp.own) .. ',"foreign_bytes":' .. json_int(stamp.foreign)
    .. ',"unaccounted":' .. json_bool(poll.unaccounted)
    .. ',"healthy":' .. json_bool(stamp.healthy) .. ',"reason":' .. json_text(stamp.reason)
    .. ',"busy":' .. busy .. ',"models":' .. poll.models_text .. '}'
  node.event_id = append('ResidencyObserved', 1, fence, nil, data)
  node.fingerprint, node.fence, node.observed_at_ms = fingerprint, fence, stamp.observed_at_ms
  node.own, node.foreign, node.unaccounted = stamp.own, stamp.foreign, poll.unaccounted
  node.healthy, node.reason, node.models_text = stamp.healthy, stamp.reason, poll.models_text
  stamp.logged_at_ms, stamp.logged_fence = now, fence
  for _, model in ipairs(poll.models) do
    if model.ownership == 'own' then
      for _, key in ipairs(keys_of(model)) do
        remember_weight(place, poll.node_id, key, model, stamp.observed_at_ms)
      end
    end
  end
end

local function log_health(poll, node, stamp)
  node.event_id = append('NodeHealthChanged', 1, fence, nil, '{"node_id":'
    .. json_text(poll.node_id) .. ',"base_url":' .. json_text(poll.base_url)
    .. ',"healthy":' .. json_bool(stamp.healthy) .. ',"reason":' .. json_text(stamp.reason)
    .. ',"failed_in_row":' .. json_int(stamp.failed_in_row) .. '}')
  node.healthy, node.reason = stamp.healthy, stamp.reason
end

local function worth_logging(poll, node, stamp, busy_changed)
  return busy_changed or not node.known or stamp.logged_fence ~= fence or now - stamp.logged_at_ms >= LOG_EVERY_MS
    or now < stamp.logged_at_ms or node.fingerprint ~= fingerprint
    or node.unaccounted ~= poll.unaccounted or node.healthy ~= stamp.healthy
    or not same_models(poll.models, node.models)
end

local function sample(poll, stamp)
  redis.call('XADD', samples_key, 'MAXLEN', '~', samples_max, '*', 'node', poll.node_id,
    'at_ms', int_text(now), 'elapsed_ms', int_text(poll.elapsed_ms), 'fence', int_text(fence),
    'outcome', poll.good and 'ok' or poll.reason, 'healthy', stamp.healthy and '1' or '0',
    'own', poll.good and int_text(stamp.own) or '',
    'foreign', poll.good and stamp.foreign and int_text(stamp.foreign) or '',
    'latency_ms', int_text(poll.latency_ms))
end

-- What the poll says of the node, as placement reads it.
local function update_capacity(poll, stamp, place)
  local before = place.observed_at == 0 or not place.fingerprint or place.healthy == false
    or place.loading or place.unaccounted or now - place.observed_at > staleness_ms
  local foreign = place.foreign
  if poll.good then
    place.observed_at, place.observed_fence = stamp.observed_at_ms, fence
    place.fingerprint, place.print, place.epoch = true, fingerprint, pool_epoch
    place.unaccounted, place.foreign = stamp.unaccounted, foreign_of(poll.models)
    place.seq = poll.seq
  end
  place.healthy, place.loading = stamp.healthy, stamp.loading or nil
  if place.drains then
    settle(poll.node_id, place)
  end
  if poll.good and (before or foreign ~= place.foreign) then
    free_something()
  end
  touch(poll.node_id)
end

local function end_reservation(node_id, place)
  append('ReservationEnded', 1, fence, nil, '{"node_id":' .. json_text(node_id)
    .. ',"request_key":' .. json_text(place.reserved.request)
    .. ',"how":"node_ineligible","next":[]}')
  redis.call('HDEL', reservations_key, node_id)
  place.reserved = nil
  free_something()
end

local function record(poll, stamp_before, telemetry_key)
  local place = load_node(poll.node_id)
  if not place then
    place = new_node(poll.node_id, poll.base_url)
    records[poll.node_id] = place
  end
  local moved, busy, busy_changed = 0, '[]', false
  if poll.good then
    moved, busy, busy_changed = judge_residents(poll, place)
  end
  local stamp = next_stamp(poll, stamp_before, moved)
  local node = read_node(poll.node_id, poll.base_url)
  local was_healthy = node.known and node.healthy
  local logged = false
  if poll.good and worth_logging(poll, node, stamp, busy_changed) then
    log_observation(poll, node, stamp, busy, place)
    logged = true
    free_something()
  end
  local turned = stamp.healthy ~= nil
    and (node.known and was_healthy ~= stamp.healthy or not node.known and not stamp.healthy)
  if turned then
    log_health(poll, node, stamp)
    logged = true
  end
  if logged then
    redis.call('HSET', nodes_key, poll.node_id, node_text(node))
  end
  update_capacity(poll, stamp, place)
  if stamp.healthy == false and place.reserved then
    end_reservation(poll.node_id, place)
  end
  redis.call('HSET', stamps_key, poll.node_id, stamp_text(stamp, poll.base_url))
  if poll.telemetry ~= '' then
    redis.call('SET', telemetry_key, poll.telemetry, 'PX', telemetry_ttl_ms)
  end
  sample(poll, stamp)
end

local words = {}
for i, poll in ipairs(polls) do
  local text = redis.call('HGET', stamps_key, poll.node_id)
  local stamp = text and cjson.decode(text) or nil
  local word = judge(poll, stamp)
  if word == 'ok' then
    record(poll, stamp, KEYS[first_telemetry + i - 1])
  end
  words[i] = word
end
flush_nodes()
if #words > 0 then
  redis.call('XTRIM', samples_key, 'MINID', '~', int_text(math.max(0, now - samples_age_ms)) .. '-0')
end
return { 'ok', int_text(now), words }
