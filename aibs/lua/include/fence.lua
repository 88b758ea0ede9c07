-- Include: pool term
-- Answers a refusal unless the living term is exactly this owner's with this fence.
local function check_fence(script, owner, fence)
  expire_term()
  if owner ~= '' and term.owner == owner and term.fence == fence then
    return nil
  end
  -- A fence that this server never granted: it has lost the election that granted it.
  if fence > term.fence then
    suspect('fence_regressed', recovery_ms_of_pool())
  end
  return reject(script, owner, fence)
end
