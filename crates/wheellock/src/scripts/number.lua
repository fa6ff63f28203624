-- The number under a key, nil if there is nothing; and the error to answer with if there is other data.
local function number(key)
    local text = redis.pcall('get', key)
    if type(text) == 'table' then
        return nil, text
    end
    if text and not tonumber(text) then
        return nil, redis.error_reply('WRONGTYPE what is under this name is no number')
    end
    return text and tonumber(text) or nil
end

