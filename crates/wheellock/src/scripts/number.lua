-- The number under the name, nil if there is nothing. Other data ends the script with an error, before anything was changed.
local number = redis.pcall('get', KEYS[1])
if type(number) == 'table' then
    return number
end
-- As commands count: to this language more texts are numbers.
if number and not string.find(number, '^%-?%d+$') then
    return redis.error_reply('WRONGTYPE what is under this name is no number')
end
number = number and tonumber(number) or nil

