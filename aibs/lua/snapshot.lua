-- Completes a snapshot: from now on its parts are what a reader may begin with. It says up to which
-- event it tells, and the log must have that event. After the arguments follow the parts' names.
-- Include: fence
-- Keys: pool owner log rejections snapshots snapshot_open
-- Args: actor owner fence:int snapshot_id upto_id upto_seq:int upto_at_ms:int anchor digest folds parts*
-- Replies: ok duplicate missing_part rewound fenced pool_missing pool_version
-- Events: SnapshotTaken OwnerExpired FencedWriteRejected PoolSuspect PoolReopened
local refusal = read_pool()
if refusal then
  return refusal
end
local taken = redis.call('HGET', snapshots_key, snapshot_id)
if taken then
  return { 'duplicate', cjson.decode(taken).event_id }
end
refusal = check_fence('snapshot', owner, fence)
if refusal then
  return refusal
end
for i = first_parts, #ARGV do
  if redis.call('HEXISTS', snapshot_open_key, snapshot_id .. '|' .. ARGV[i]) == 0 then
    return { 'missing_part', ARGV[i] }
  end
end
local held = redis.call('XRANGE', log_key, upto_id, upto_id)
if not held[1] or upto_seq > pool_seq then
  return { 'rewound', pool_last_id }
end

local event_id = append('SnapshotTaken', 1, fence, nil, '{"snapshot_id":' .. json_text(snapshot_id)
  .. ',"upto_id":' .. json_text(upto_id) .. ',"upto_seq":' .. json_int(upto_seq)
  .. ',"digest":' .. json_text(digest) .. ',"folds":' .. folds .. '}')
redis.call('HSET', snapshots_key, snapshot_id, '{"snapshot_id":' .. json_text(snapshot_id)
  .. ',"pool_id":' .. json_text(pool_id) .. ',"upto_id":' .. json_text(upto_id)
  .. ',"upto_seq":' .. json_int(upto_seq) .. ',"upto_at_ms":' .. json_int(upto_at_ms)
  .. ',"anchor":' .. json_text(anchor) .. ',"digest":' .. json_text(digest)
  .. ',"event_id":' .. json_text(event_id) .. ',"taken_at_ms":' .. json_int(now)
  .. ',"folds":' .. folds .. '}')
redis.call('DEL', snapshot_open_key)
return { 'ok', event_id }
