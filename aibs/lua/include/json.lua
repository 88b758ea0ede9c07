-- Exports: json_text json_int json_bool
-- Pieces of JSON text. Documents are joined from these, never printed by cjson as a whole.
local function json_text(value)
  if value == nil or value == false then
    return 'null'
  end
  local text = cjson.encode(value)
  -- It escapes slashes, of which names and URLs are full.
  if string.find(text, '\\/', 1, true) then
    text = string.gsub(text, '\\/', '/')
  end
  return text
end

local function json_int(number)
  if number == nil or number == false then
    return 'null'
  end
  return int_text(number)
end

local function json_bool(value)
  return value and 'true' or 'false'
end
