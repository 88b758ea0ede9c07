-- Include: event int
-- Exports: clamp_all clamp_deadlines shift_times
-- What a step of the server's clock does to the times that are kept.
local function ttl_of(lease_id)
  local text = redis.call('HGET', leases_key, lease_id)
  return text and tonumber(string.match(text, '"ttl_ms":(%d+)')) or 0
end

-- No deadline lies further ahead than its TTL could have set it.
local function clamp_all()
  local held = redis.call('ZRANGE', deadlines_key, 0, -1, 'WITHSCORES')
  for i = 1, #held, 2 do
    local most = now + ttl_of(held[i])
    if tonumber(held[i + 1]) > most then
      redis.call('ZADD', deadlines_key, int_text(most), held[i])
    end
  end
end

-- Sees a step back by a deadline that lies too far ahead, whoever holds the term.
local function clamp_deadlines()
  local last = redis.call('ZRANGE', deadlines_key, -1, -1, 'WITHSCORES')
  if not last[1] then
    return
  end
  local most = now + ttl_of(last[1])
  if tonumber(last[2]) > most then
    append('ClockStepped', 1, nil, nil, '{"delta_ms":' .. int_text(most - tonumber(last[2])) .. '}')
    clamp_all()
  end
end

local function shift_scores(key, step_ms)
  local held = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  for i = 1, #held, 2 do
    redis.call('ZADD', key, int_text(tonumber(held[i + 1]) + step_ms), held[i])
  end
end

local function shift_numbers(key, pattern, step_ms)
  local held = redis.call('HGETALL', key)
  for i = 1, #held, 2 do
    local text = string.gsub(held[i + 1], pattern, function(name, number)
      return name .. int_text(tonumber(number) + step_ms)
    end)
    redis.call('HSET', key, held[i], text)
  end
end

-- After a step forward what was alive stays alive: every time that is waited for moves along.
local function shift_times(step_ms)
  shift_scores(deadlines_key, step_ms)
  shift_scores(places_key, step_ms)
  shift_scores(queue_high_key, step_ms)
  shift_scores(queue_normal_key, step_ms)
  shift_scores(queue_low_key, step_ms)
  shift_numbers(waiters_key, '("arrival_ms":)(%d+)', step_ms)
  shift_numbers(waiters_key, '("wait_deadline_ms":)(%d+)', step_ms)
  shift_numbers(heads_key, '^(%-?)(%d+)', step_ms)
  local marks = redis.call('HGETALL', marks_key)
  for i = 1, #marks, 2 do
    local kind = string.match(marks[i], '^(%a+)|')
    local text = marks[i + 1]
    if kind == 'revoked' then
      text = string.gsub(text, '("due_ms":)(%d+)', function(name, number)
        return name .. int_text(tonumber(number) + step_ms)
      end)
    else
      text = string.gsub(text, '^%d+', function(number)
        return int_text(tonumber(number) + step_ms)
      end)
    end
    redis.call('HSET', marks_key, marks[i], text)
  end
end
