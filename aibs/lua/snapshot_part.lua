-- Stores one part of a snapshot that is being made. The same part again replaces it; parts of
-- another snapshot that was never completed go. Nothing reads a part before `snapshot` names it.
-- Include: fence
-- Keys: pool owner log rejections snapshots snapshot_parts snapshot_open
-- Args: actor owner fence:int snapshot_id part body
-- Replies: ok duplicate too_large fenced pool_missing pool_version
-- Events: OwnerExpired FencedWriteRejected PoolSuspect PoolReopened
local PART_BYTES_MAX = 1048576
local PARTS_MAX = 1024

local refusal = read_pool()
if refusal then
  return refusal
end
if redis.call('HEXISTS', snapshots_key, snapshot_id) == 1 then
  return { 'duplicate' }
end
refusal = check_fence('snapshot_part', owner, fence)
if refusal then
  return refusal
end
if #body > PART_BYTES_MAX or redis.call('HLEN', snapshot_open_key) >= PARTS_MAX then
  return { 'too_large' }
end

local open = redis.call('HGETALL', snapshot_open_key)
redis.call('HSET', snapshot_parts_key, snapshot_id .. '|' .. part, body)
redis.call('HSET', snapshot_open_key, snapshot_id .. '|' .. part, snapshot_id)
for i = 1, #open, 2 do
  if open[i + 1] ~= snapshot_id then
    redis.call('HDEL', snapshot_parts_key, open[i])
    redis.call('HDEL', snapshot_open_key, open[i])
  end
end
return { 'ok' }
