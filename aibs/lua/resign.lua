-- Ends the named term at once, so that a standby need not wait for its expiry.
-- Flags: allow-oom
-- Include: fence
-- Keys: pool owner log rejections
-- Args: actor owner fence:int
-- Replies: ok duplicate fenced pool_missing pool_version
-- Events: OwnerResigned OwnerExpired FencedWriteRejected PoolSuspect
local refusal = read_pool()
if refusal then
  return refusal
end
read_term()
if term.owner == '' and term.fence == fence and term.last_owner == owner
    and term.ended == 'resigned' then
  return { 'duplicate' }
end
refusal = check_fence('resign', owner, fence)
if refusal then
  return refusal
end
end_term('resigned')
return { 'ok' }
