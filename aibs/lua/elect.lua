-- Grants the term to a candidate when it is vacant or expired, with a fence higher than any before.
-- The same attempt again gets the same answer.
-- Flags: allow-oom
-- Include: pool term
-- Keys: pool owner log standbys
-- Args: actor attempt owner ttl_ms:int mono_ms:int known_fence:int
-- Replies: ok ended held pool_missing pool_version
-- Events: OwnerElected OwnerExpired PoolSuspect
local STANDBY_SEEN_MS = 30000

local refusal = read_pool()
if refusal then
  return refusal
end
expire_term()
if term.attempt == attempt then
  if term.owner ~= owner then
    return { 'ended', int_text(term.fence), term.ended }
  end
  return { 'ok', int_text(term.fence), int_text(term.deadline_ms - now), int_text(now) }
end
mind_fence(known_fence, term.fence)
if term.owner ~= '' then
  -- Who stands by is told to people only.
  redis.call('ZADD', standbys_key, int_text(now), owner)
  redis.call('ZREMRANGEBYSCORE', standbys_key, '-inf', int_text(now - STANDBY_SEEN_MS))
  return { 'held', term.owner, int_text(term.fence), int_text(term.deadline_ms - now), int_text(now) }
end

local jump = tonumber(redis.call('HGET', pool_key, 'jump') or 0)
local fence = math.max(term.fence, known_fence) + 1 + jump
local deadline_ms = now + ttl_ms
local id = append('OwnerElected', 1, fence, nil, '{"owner":' .. json_text(owner)
  .. ',"fence":' .. json_int(fence) .. ',"ttl_ms":' .. json_int(ttl_ms)
  .. ',"deadline_ms":' .. json_int(deadline_ms)
  .. ',"follows":' .. (term.last_owner ~= '' and json_text(term.last_owner) or 'null')
  .. ',"follows_fence":' .. (term.fence > 0 and json_int(term.fence) or 'null')
  .. ',"because":' .. json_text(term.ended ~= '' and term.ended or 'vacant') .. '}')
redis.call('HSET', owner_key, 'owner', owner, 'fence', int_text(fence),
  'deadline_ms', int_text(deadline_ms), 'ttl_ms', int_text(ttl_ms), 'attempt', attempt,
  'ended', '', 'elected_at_ms', int_text(now), 'event_id', id,
  'renewed_at_ms', int_text(now), 'renewed_mono_ms', int_text(mono_ms))
redis.call('HSET', pool_key, 'fence', int_text(fence))
redis.call('HDEL', pool_key, 'jump')
redis.call('ZREM', standbys_key, owner)
return { 'ok', int_text(fence), int_text(ttl_ms), int_text(now) }
