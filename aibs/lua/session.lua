-- Makes a holder known, and ends what dead holders of the same host left behind. Who is dead the
-- caller knows: it looked at the processes of its own host.
-- Flags: allow-oom
-- Include: pool lease
-- Keys: pool owner log leases deadlines drains requests ended_until capacity open trips sessions marks
-- Args: actor holder environment host boot_id pid:int pid_start:int dead*
-- Replies: ok pool_missing pool_version
-- Events: SessionOpened SessionEnded LeaseReaped NodeTripped NodeRestored PoolSuspect PoolReopened OwnerExpired
local LEASES_MAX = 64
local SESSIONS_MAX = 4096

local refusal = read_pool()
if refusal then
  return refusal
end
local reaped = 0
local function end_leases_of(dead)
  local ids = redis.call('HGETALL', leases_key)
  for i = 1, #ids, 2 do
    if reaped == LEASES_MAX then
      return false
    end
    local lease = cjson.decode(ids[i + 1])
    if lease.holder == dead then
      reap_lease(lease, 'holder_restarted', holder, lease.drain_ms)
      reaped = reaped + 1
    end
  end
  return true
end

for i = first_dead, #ARGV do
  local text = redis.call('HGET', sessions_key, ARGV[i])
  local session = text and cjson.decode(text) or nil
  if session and session.host == host and ARGV[i] ~= holder and end_leases_of(ARGV[i]) then
    append('SessionEnded', 1, nil, nil, '{"holder":' .. json_text(ARGV[i])
      .. ',"why":"holder_restarted"}')
    redis.call('HDEL', sessions_key, ARGV[i])
  end
end
if holder ~= '' and redis.call('HEXISTS', sessions_key, holder) == 0
    and redis.call('HLEN', sessions_key) < SESSIONS_MAX then
  local text = '"environment":' .. json_text(environment) .. ',"host":' .. json_text(host)
    .. ',"boot_id":' .. json_text(boot_id) .. ',"pid":' .. json_int(pid) .. ',"pid_start":'
    .. json_int(pid_start)
  append('SessionOpened', 1, nil, nil, '{"holder":' .. json_text(holder) .. ',' .. text .. '}')
  redis.call('HSET', sessions_key, holder, '{' .. text .. ',"since_ms":' .. json_int(now) .. '}')
end
flush_nodes()
return { 'ok', int_text(now), int_text(reaped) }
