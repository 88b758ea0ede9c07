-- Keeps the places of a process's waiters, and tells each where it stands.
-- Flags: allow-oom
-- Include: pool deny wait
-- Keys: pool owner log leases deadlines drains requests ended_until capacity open trips lanes waiters heads reservations reserved queue_high queue_normal queue_low places tried counts denials marks
-- Args: actor holder grace_ms:int staleness_ms:int swap_min_ms:int swap_max_ms:int waiting*
-- Replies: ok pool_missing pool_version
-- Polls: queued leased ended unknown
-- Events: WaitEnded ReservationEnded PoolSuspect PoolReopened OwnerExpired
local refusal = read_pool()
if refusal then
  return refusal
end
for i = first_waiting, #ARGV do
  local waiter = waiter_of(ARGV[i])
  if waiter and waiter.wait_deadline_ms > now then
    keep_place(waiter, grace_ms)
  end
end
sweep_places(SWEEP_MAX)
local words = {}
for i = first_waiting, #ARGV do
  local request_key, word = ARGV[i], 'unknown'
  local waiter, ended = waiter_of(request_key), nil
  if waiter then
    word = 'queued ' .. int_text(standing(waiter))
  else
    local line = redis.call('HGET', requests_key, request_key)
    ended = tombstone_of(line)
    if ended then
      word = 'ended ' .. ended.how
    elseif line and string.sub(line, 1, 5) ~= 'ended' then
      word = 'leased'
    end
  end
  words[#words + 1] = word
end
flush_nodes()
return { 'ok', int_text(now), words }
