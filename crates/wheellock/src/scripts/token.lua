-- Returns the fencing token of a grant as text. A holder that has the lock already keeps the latest token. Returns the
-- error WRONGTYPE if the counter's key has other data.
--
-- The token is greater than all earlier tokens, even if the server has lost them. A new token is at least the server's
-- time in microseconds. A counter does not pass this time unless it rises more than a million times per second.
local function token_of_grant(lock, tag, held)
    local counter = 'redisson_lock_token:' .. tag
    local stored = redis.pcall('get', counter)
    if type(stored) == 'table' then
        return stored
    end
    if not stored then
        -- While a cluster moves the slot, a missing key may still be on the other node. The importing node then refuses
        -- this command for both keys, and the script ends.
        redis.call('exists', lock, counter)
    elseif not tonumber(stored) then
        return redis.error_reply('WRONGTYPE what is under the name of the token is no number')
    end
    if held and stored then
        return stored
    end
    local time = redis.call('time')
    local now = time[1] * 1000000 + time[2]
    if (tonumber(stored) or 0) < now then
        stored = string.format('%.0f', now)
        redis.call('set', counter, stored)
        return stored
    end
    redis.call('incr', counter)
    -- Read as text, because Lua's numbers are exact only up to 2^53.
    return redis.call('get', counter)
end

