-- Include: event
-- Exports: term read_term end_term expire_term
-- The owner's term, and the fence that every write of an owner must show.
term = nil

local function read_term()
  local held = redis.call('HMGET', owner_key, 'owner', 'fence', 'deadline_ms', 'ttl_ms', 'attempt',
    'ended', 'last_owner', 'renewed_at_ms', 'renewed_mono_ms')
  term = {
    owner = held[1] or '', fence = tonumber(held[2] or 0), deadline_ms = tonumber(held[3] or 0),
    ttl_ms = tonumber(held[4] or 0), attempt = held[5] or '', ended = held[6] or '',
    last_owner = held[7] or '', renewed_at_ms = tonumber(held[8] or 0),
    renewed_mono_ms = tonumber(held[9] or 0),
  }
  -- After the clock stepped back a deadline would lie far ahead: it never exceeds its TTL. Kept at
  -- once, or a dead owner's deadline would move along with each look at it.
  if term.owner ~= '' and term.deadline_ms > now + term.ttl_ms then
    term.deadline_ms = now + term.ttl_ms
    redis.call('HSET', owner_key, 'deadline_ms', int_text(term.deadline_ms))
  end
end

local function end_term(how)
  if not term then
    read_term()
  end
  if term.owner == '' then
    return
  end
  local type = how == 'resigned' and 'OwnerResigned' or 'OwnerExpired'
  local id = append(type, 1, term.fence, nil, '{"owner":' .. json_text(term.owner)
    .. ',"fence":' .. json_int(term.fence) .. ',"deadline_ms":' .. json_int(term.deadline_ms)
    .. ',"how":' .. json_text(how) .. '}')
  redis.call('HSET', owner_key, 'owner', '', 'last_owner', term.owner, 'ended', how,
    'deadline_ms', '0', 'event_id', id)
  term.last_owner, term.owner, term.ended, term.deadline_ms = term.owner, '', how, 0
end

local function expire_term()
  if not term then
    read_term()
  end
  if term.owner ~= '' and term.deadline_ms <= now then
    end_term('expired')
  end
end
