-- Lets the oldest events go, at most `batch_max` of them, where a snapshot stands in for them. The
-- caller read that snapshot back: it names the digest of what it read. An event goes when it is
-- older than the retention, or while the log takes more than `max_bytes`; never the snapshot's own
-- last event, nor the grant of a living lease or the queueing of a waiter, nor anything behind it.
-- Snapshots from which the log no longer goes on go too.
-- Flags: allow-oom
-- Include: fence
-- Keys: pool owner log rejections leases waiters snapshots snapshot_parts
-- Args: actor owner fence:int snapshot_id digest retention_ms:int max_bytes:int batch_max:int
-- Replies: ok unknown unverified fenced pool_missing pool_version
-- Events: LogTrimmed OwnerExpired FencedWriteRejected PoolSuspect PoolReopened
local SNAPSHOTS_MAX = 4
local BATCH_MAX = 1000

local refusal = read_pool()
if refusal then
  return refusal
end
refusal = check_fence('trim', owner, fence)
if refusal then
  return refusal
end
local text = redis.call('HGET', snapshots_key, snapshot_id)
if not text then
  return { 'unknown' }
end
local snapshot = cjson.decode(text)
if snapshot.digest ~= digest then
  return { 'unverified' }
end

-- An entry's fields by name.
local function fields_of(entry)
  local found, list = {}, entry[2]
  for i = 1, #list, 2 do
    found[list[i]] = list[i + 1]
  end
  return found
end

local function still_needed(type, data)
  if type == 'LeaseAcquired' then
    local lease_id = string.match(data, '"lease_id":"([^"]+)"')
    return lease_id and redis.call('HEXISTS', leases_key, lease_id) == 1 and 'lease'
  end
  if type == 'LeaseQueued' then
    local name = string.match(data, '"request_key":"([^"]+)"')
    -- A name that JSON writes otherwise than it is may be a waiter's.
    if name and string.find(name, '\\', 1, true) then
      return redis.call('HLEN', waiters_key) > 0 and 'waiter'
    end
    return name and redis.call('HEXISTS', waiters_key, name) == 1 and 'waiter'
  end
  return nil
end

local length = redis.call('XLEN', log_key)
local bytes = redis.call('MEMORY', 'USAGE', log_key) or 0
local over = 0
if bytes > max_bytes then
  over = math.ceil(length * (bytes - max_bytes) / bytes)
end
local most = math.min(batch_max, BATCH_MAX)
local entries = redis.call('XRANGE', log_key, '-', '+', 'COUNT', most + 1)
local removed, last, last_seq, stopped, why = 0, nil, 0, 'empty', 'age'
for i, entry in ipairs(entries) do
  local fields = fields_of(entry)
  local seq, at = tonumber(fields.seq), tonumber(fields.at_ms)
  if not seq or not at or seq >= snapshot.upto_seq then
    stopped = 'snapshot'
    break
  end
  local aged = now - at > retention_ms
  if not aged and i > over then
    stopped = 'kept'
    break
  end
  local needed = still_needed(fields.type, fields.data or '')
  if needed then
    stopped = needed
    break
  end
  if i > most then
    stopped = 'more'
    break
  end
  if not aged then
    why = 'bytes'
  end
  removed, last, last_seq = i, entry[1], seq
end
if removed == 0 or removed >= #entries then
  return { 'ok', '0', stopped, int_text(bytes) }
end

local first_id = entries[removed + 1][1]
append('LogTrimmed', 1, fence, nil, '{"snapshot_id":' .. json_text(snapshot_id)
  .. ',"first_id":' .. json_text(first_id) .. ',"upto_id":' .. json_text(last)
  .. ',"upto_seq":' .. json_int(last_seq) .. ',"removed":' .. json_int(removed)
  .. ',"why":' .. json_text(why) .. '}')
redis.call('XTRIM', log_key, 'MINID', '=', first_id)

local held, gone = redis.call('HGETALL', snapshots_key), 0
for i = 1, #held, 2 do
  local other = cjson.decode(held[i + 1])
  if other.upto_seq < last_seq and gone < SNAPSHOTS_MAX then
    for _, fold in ipairs(other.folds) do
      for part = 1, fold.parts do
        redis.call('HDEL', snapshot_parts_key, held[i] .. '|' .. fold.name .. '|' .. int_text(part))
      end
    end
    redis.call('HDEL', snapshots_key, held[i])
    gone = gone + 1
  end
end
return { 'ok', int_text(removed), stopped, int_text(bytes) }
