-- Records what polls saw. Each poll is judged alone: it must have begun under the living fence, of
-- this fleet and URL, later than the last one recorded, and recently enough to say anything. A good
-- one is stamped with its beginning by the server's clock; a failed one leaves the last stamp to age.
-- For each poll follow: node_id begun_fence seq base_url elapsed_ms outcome reason latency_ms
-- unaccounted models telemetry (outcome `ok` or `failed`; models a JSON list in canonical order;
-- empty telemetry leaves the last one).
-- Flags: allow-oom
-- Include: fence residency
-- Keys: pool owner log rejections fleet declared nodes stamps samples telemetry*
-- Args: actor owner fence:int fingerprint failure_threshold:int staleness_ms:int telemetry_ttl_ms:int samples_max:int samples_age_ms:int polls*
-- Replies: ok fenced fleet_mismatch pool_missing pool_version
-- Polls: ok duplicate older other_fence undeclared other_url too_late
-- Events: ResidencyObserved NodeHealthChanged OwnerExpired FencedWriteRejected PoolSuspect
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

local function next_stamp(poll, stamp)
  local next = {
    observed_at_ms = 0, own = nil, foreign = nil, unaccounted = false, good_in_row = 0,
    failed_in_row = 0, observed_fence = 0, fingerprint = '', logged_at_ms = 0, logged_fence = 0,
    epoch = 0, healthy = nil, reason = '',
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
    next.unaccounted, next.fingerprint, next.epoch = poll.unaccounted, fingerprint, pool_epoch
    if poll.unaccounted then
      next.foreign = nil
    end
    next.failed_in_row, next.good_in_row = 0, next.good_in_row + 1
    if next.healthy == nil or next.good_in_row >= GOOD_POLLS_TO_RETURN then
      next.healthy, next.reason = true, ''
    end
  else
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

local function log_observation(poll, node, stamp)
  local data = '{"node_id":' .. json_text(poll.node_id)
    .. ',"base_url":' .. json_text(poll.base_url) .. ',"fingerprint":' .. json_text(fingerprint)
    .. ',"observed_at_ms":' .. json_int(stamp.observed_at_ms)
    .. ',"elapsed_ms":' .. json_int(poll.elapsed_ms)
    .. ',"latency_ms":' .. json_int(poll.latency_ms)
    .. ',"own_bytes":' .. json_int(stamp.own) .. ',"foreign_bytes":' .. json_int(stamp.foreign)
    .. ',"unaccounted":' .. json_bool(poll.unaccounted)
    .. ',"healthy":' .. json_bool(stamp.healthy) .. ',"reason":' .. json_text(stamp.reason)
    .. ',"models":' .. poll.models_text .. '}'
  node.event_id = append('ResidencyObserved', 1, fence, nil, data)
  node.fingerprint, node.fence, node.observed_at_ms = fingerprint, fence, stamp.observed_at_ms
  node.own, node.foreign, node.unaccounted = stamp.own, stamp.foreign, poll.unaccounted
  node.healthy, node.reason, node.models_text = stamp.healthy, stamp.reason, poll.models_text
  stamp.logged_at_ms, stamp.logged_fence = now, fence
end

local function log_health(poll, node, stamp)
  node.event_id = append('NodeHealthChanged', 1, fence, nil, '{"node_id":'
    .. json_text(poll.node_id) .. ',"base_url":' .. json_text(poll.base_url)
    .. ',"healthy":' .. json_bool(stamp.healthy) .. ',"reason":' .. json_text(stamp.reason)
    .. ',"failed_in_row":' .. json_int(stamp.failed_in_row) .. '}')
  node.healthy, node.reason = stamp.healthy, stamp.reason
end

local function worth_logging(poll, node, stamp)
  return not node.known or stamp.logged_fence ~= fence or now - stamp.logged_at_ms >= LOG_EVERY_MS
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

local function record(poll, stamp_before, telemetry_key)
  local stamp = next_stamp(poll, stamp_before)
  local node = read_node(poll.node_id, poll.base_url)
  local was_healthy = node.known and node.healthy
  local logged = false
  if poll.good and worth_logging(poll, node, stamp) then
    log_observation(poll, node, stamp)
    logged = true
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
if #words > 0 then
  redis.call('XTRIM', samples_key, 'MINID', '~', int_text(math.max(0, now - samples_age_ms)) .. '-0')
end
return { 'ok', int_text(now), words }
