-- Include: int json
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
