-- Reads the number under the key as `number`, or nil if there is no key. Other data ends the script with an error,
-- before the script has changed anything.
local number = redis.pcall('get', KEYS[1])
if type(number) == 'table' then
    return number
end
-- Accepts whole decimal numbers only, as the server's commands do. Lua would accept more texts as numbers.
if number and not string.find(number, '^%-?%d+$') then
    return redis.error_reply('WRONGTYPE what is under this name is no number')
end
number = number and tonumber(number) or nil

