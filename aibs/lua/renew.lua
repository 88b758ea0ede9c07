-- Prolongs the living term of exactly this owner and fence. Notices a step of the server's clock: a
-- first call that sees one answers `clock` and changes nothing; the caller reads its own clock anew
-- and confirms, because a caller that was paused between reading and sending looks the same.
-- Flags: allow-oom
-- Include: fence step
-- Keys: pool owner log rejections leases deadlines marks places waiters heads queue_high queue_normal queue_low
-- Args: actor owner fence:int ttl_ms:int mono_ms:int confirmed_step_ms:int
-- Replies: ok clock fenced pool_missing pool_version
-- Events: ClockStepped PoolReopened OwnerExpired FencedWriteRejected PoolSuspect
local STEP_MS = 2000
local AGREEMENT_MS = 1000

local refusal = read_pool()
if refusal then
  return refusal
end
read_term()
if term.owner == owner and term.fence == fence and owner ~= '' then
  local step_ms = (now - term.renewed_at_ms) - (mono_ms - term.renewed_mono_ms)
  if math.abs(step_ms) > STEP_MS then
    if math.abs(step_ms - confirmed_step_ms) > AGREEMENT_MS then
      return { 'clock', int_text(step_ms), int_text(now) }
    end
    append('ClockStepped', 1, fence, nil, '{"delta_ms":' .. json_int(step_ms) .. '}')
    -- What was alive before the step is alive after it.
    if step_ms > 0 then
      term.deadline_ms = term.deadline_ms + step_ms
      redis.call('HSET', owner_key, 'deadline_ms', int_text(term.deadline_ms))
    end
    local recover_at = tonumber(redis.call('HGET', pool_key, 'recover_at_ms') or 0)
    if step_ms > 0 then
      shift_times(step_ms)
    else
      clamp_all()
    end
    if pool_state == 'suspect' then
      redis.call('HSET', pool_key, 'recover_at_ms', int_text(recover_at + step_ms))
    end
  end
end
refusal = check_fence('renew', owner, fence)
if refusal then
  return refusal
end

if pool_state == 'suspect' and tonumber(redis.call('HGET', pool_key, 'recover_at_ms')) <= now then
  reopen('recovered', fence)
end
redis.call('HSET', owner_key, 'deadline_ms', int_text(now + ttl_ms), 'ttl_ms', int_text(ttl_ms),
  'renewed_at_ms', int_text(now), 'renewed_mono_ms', int_text(mono_ms))
return { 'ok', int_text(ttl_ms), int_text(now), pool_state, pool_last_id }
