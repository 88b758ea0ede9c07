-- Include: pool term
-- Exports: reject check_fence
-- Checks that a writer's term lives; a refused write is counted, and told once in a while.
local REJECTION_WINDOW_MS = 10000
local MAX_REJECTIONS = 64

-- A refused write is itself an event, once in ten seconds for each writer and script.
local function reject(script, owner, fence)
  local field = script .. '|' .. owner
  local held = redis.call('HGET', rejections_key, field)
  local since, count = 0, 0
  if held then
    since, count = string.match(held, '^(%d+) (%d+)$')
    since, count = tonumber(since), tonumber(count)
  end
  if held and now - since < REJECTION_WINDOW_MS and now >= since then
    redis.call('HSET', rejections_key, field, int_text(since) .. ' ' .. int_text(count + 1))
  else
    append('FencedWriteRejected', 1, fence, nil, '{"script":' .. json_text(script)
      .. ',"owner":' .. json_text(owner) .. ',"fence":' .. json_int(fence)
      .. ',"current_owner":' .. json_text(term.owner) .. ',"current_fence":' .. json_int(term.fence)
      .. ',"repeats":' .. json_int(count) .. '}')
    if redis.call('HLEN', rejections_key) >= MAX_REJECTIONS then
      redis.call('DEL', rejections_key)
    end
    redis.call('HSET', rejections_key, field, int_text(now) .. ' 0')
  end
  return { 'fenced', term.owner, int_text(term.fence) }
end

-- Answers a refusal unless the living term is exactly this owner's with this fence.
local function check_fence(script, owner, fence)
  expire_term()
  if owner ~= '' and term.owner == owner and term.fence == fence then
    return nil
  end
  mind_fence(fence, term.fence)
  return reject(script, owner, fence)
end
