-- Renews leases of one holder, each for its own TTL from now. One that is over is ended there and
-- then, and told so. For each lease follow: lease_id token. Answers the newest fence too, so that
-- holders know a server that forgot it.
-- Flags: allow-oom
-- Include: pool lease
-- Keys: pool owner log leases deadlines drains requests ended_until capacity open trips marks
-- Args: actor holder known_fence:int renewals*
-- Replies: ok pool_missing pool_version
-- Polls: ok revoked expired unknown
-- Events: LeasesRenewed LeaseExpired LeaseReaped NodeTripped NodeRestored PoolSuspect PoolReopened OwnerExpired
local refusal = read_pool()
if refusal then
  return refusal
end
mind_fence(known_fence, pool_fence)

local words, renewed, overdue = {}, {}, {}
for i = first_renewals, #ARGV, 2 do
  local lease = lease_of(ARGV[i])
  local word = 'unknown'
  if lease and lease.token == ARGV[i + 1] and lease.holder == holder then
    local deadline_ms = tonumber(redis.call('ZSCORE', deadlines_key, lease.lease_id))
    if redis.call('HEXISTS', marks_key, 'revoked|' .. lease.lease_id) == 1 then
      word = 'revoked'
    elseif deadline_ms <= now then
      word = 'expired'
      overdue[#overdue + 1] = { lease.lease_id, deadline_ms }
    else
      word = 'ok ' .. int_text(now + lease.ttl_ms)
      renewed[#renewed + 1] = lease
    end
  end
  words[#words + 1] = word
end

if #renewed > 0 then
  local ids, deadlines, scores, beats = {}, {}, {}, {}
  for i, lease in ipairs(renewed) do
    ids[i], deadlines[i] = json_text(lease.lease_id), int_text(now + lease.ttl_ms)
    scores[2 * i - 1], scores[2 * i] = deadlines[i], lease.lease_id
    beats[2 * i - 1], beats[2 * i] = 'beat|' .. lease.lease_id, int_text(now)
  end
  append('LeasesRenewed', 1, nil, nil, '{"holder":' .. json_text(holder) .. ',"leases":['
    .. table.concat(ids, ',') .. '],"deadlines":[' .. table.concat(deadlines, ',') .. ']}')
  redis.call('ZADD', deadlines_key, unpack(scores))
  redis.call('HSET', marks_key, unpack(beats))
end
for _, over in ipairs(overdue) do
  end_overdue(over[1], over[2])
end
flush_nodes()
return { 'ok', int_text(now), int_text(pool_fence), words }
