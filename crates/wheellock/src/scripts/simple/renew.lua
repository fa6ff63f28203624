-- Extends the leases of many locks of a single instance at once, or looks how long they still run.
--
-- KEYS     locks
-- ARGV     for each lock: lease in milliseconds, 0 to leave it as it is; token
--
-- Returns the server's clock (seconds, microseconds), then for each lock 0 (it is not this token's; it is never created
-- anew), or else 1 (extended); of a lease that was left as it is the remaining milliseconds instead, at least 1, or -1 if it
-- has no end.
--
-- Data of another type under one lock's name is an error that must not keep the others from being renewed.
local reply = redis.call('time')
reply[1], reply[2] = tonumber(reply[1]), tonumber(reply[2])
for i, lock in ipairs(KEYS) do
    local token = redis.pcall('get', lock)
    if type(token) == 'table' and not string.find(token.err, 'WRONGTYPE', 1, true) then
        return token
    elseif token ~= ARGV[2 * i] then
        reply[i + 2] = 0
    elseif ARGV[2 * i - 1] ~= '0' then
        redis.call('pexpire', lock, ARGV[2 * i - 1])
        reply[i + 2] = 1
    else
        local left = redis.call('pttl', lock)
        reply[i + 2] = left == 0 and 1 or left
    end
end
return reply
