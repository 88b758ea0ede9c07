-- Exports: MAX_INT int int_text
-- Whole numbers in and out: Lua prints 14 digits unless told otherwise.
local MAX_INT = 9007199254740992

local function int(text, name)
  local number = tonumber(text)
  if not number or number ~= math.floor(number) or math.abs(number) > MAX_INT then
    error({ err = 'ERR ' .. name .. ' is not a whole number within 2^53' })
  end
  return number
end

local function int_text(number)
  return string.format('%d', number)
end
