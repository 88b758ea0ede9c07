-- Include: int json node
-- Exports: optional same_models charges keys_of foreign_of judge_residents
-- What one poll saw of a node, compared with what the log last said of it.
local JITTER_PERCENT = 1

local function close_to(size, logged)
  return math.abs(size - logged) * 100 < JITTER_PERCENT * logged or size == logged
end

local function optional(value)
  if value == cjson.null then
    return nil
  end
  return value
end

local function same_optional_size(size, logged)
  size, logged = optional(size), optional(logged)
  if size == nil or logged == nil then
    return size == logged
  end
  return close_to(size, logged)
end

-- Two lists in the caller's canonical order: the same models, in the same place, of the same size.
local function same_models(models, logged)
  if #models ~= #logged then
    return false
  end
  for i, model in ipairs(models) do
    local other = logged[i]
    if model.key ~= other.key or optional(model.digest) ~= optional(other.digest)
        or optional(model.context_length) ~= optional(other.context_length)
        or model.ownership ~= other.ownership or model.placement ~= other.placement
        or not same_optional_size(model.size_bytes, other.size_bytes)
        or not same_optional_size(model.size_vram_bytes, other.size_vram_bytes) then
      return false
    end
  end
  return true
end

-- Own and foreign bytes: the sums of what the caller charges for each entry.
local function charges(models)
  local own, foreign = 0, 0
  for _, model in ipairs(models) do
    local charge = optional(model.charge_bytes) or 0
    if model.ownership == 'own' then
      own = own + charge
    else
      foreign = foreign + charge
    end
  end
  return own, foreign
end

-- The roster's names for a resident model: one file may serve several of them.
local function keys_of(model)
  local keys = optional(model.roster_keys)
  if keys and #keys > 0 then
    return keys
  end
  local key = optional(model.key)
  return key and { key } or {}
end

local function foreign_of(models)
  local _, foreign = charges(models)
  return foreign
end

local MOVED_MS = 1000

-- Whether somebody who does not ask this pool uses an own model: it appeared, or its keep-alive
-- moved, while no lease of ours held it. The first poll of a node, and the first to begin after
-- our last lease there, only note what is there.
local function in_use_by_others(place, key, own, observed_at)
  if place.m and place.m[key] then
    own.expires = nil
    return false
  end
  local ended = place.ended and place.ended[key]
  if place.observed_at == 0 or not place.residents_known then
    return false
  end
  if ended then
    if observed_at <= ended then
      own.expires = nil
    end
    return false
  end
  local before = place.own and place.own[key]
  if not before then
    return true
  end
  if place.busy and place.busy[key] then
    return true
  end
  return before.expires ~= nil and own.expires ~= nil
    and math.abs(own.expires - before.expires) > MOVED_MS
end

-- Notes the own models of a good poll on the node's record. Answers the bytes that others use, the
-- keys of those models as JSON, and whether they differ from before.
local function judge_residents(poll, place)
  local observed_at = now - poll.elapsed_ms
  local own, busy, moved, names, changed = {}, {}, 0, {}, false
  for _, model in ipairs(poll.models) do
    if model.ownership == 'own' then
      for i, key in ipairs(keys_of(model)) do
        local held = place.own and place.own[key]
        local charge = i == 1 and optional(model.charge_bytes) or 0
        local entry = own[key] or { charge = 0, since = held and held.since or observed_at,
          expires = optional(model.expires_at_ms) }
        entry.charge = entry.charge + charge
        own[key] = entry
        if not busy[key] and in_use_by_others(place, key, entry, observed_at) then
          busy[key] = true
        end
        if busy[key] then
          moved = moved + charge
        end
      end
    end
  end
  -- A poll that began before our last lease ended does not tell what that lease left.
  for key, ended in pairs(place.ended or {}) do
    if observed_at <= ended and not own[key] and place.own and place.own[key] then
      own[key] = place.own[key]
    end
  end
  for key in pairs(busy) do
    names[#names + 1] = key
    changed = changed or not (place.busy and place.busy[key])
  end
  for key in pairs(place.busy or {}) do
    changed = changed or not busy[key]
  end
  table.sort(names)
  for i, key in ipairs(names) do
    names[i] = json_text(key)
  end
  for key, ended in pairs(place.ended or {}) do
    if observed_at > ended then
      place.ended[key] = nil
    end
  end
  for key, going in pairs(place.going or {}) do
    if not own[key] and observed_at > going.at then
      place.going[key] = nil
    end
  end
  for _, name in ipairs({ 'ended', 'going' }) do
    if place[name] and next(place[name]) == nil then
      place[name] = nil
    end
  end
  place.own = next(own) ~= nil and own or nil
  place.busy = next(busy) ~= nil and busy or nil
  place.residents_known = true
  return moved, '[' .. table.concat(names, ',') .. ']', changed
end
