-- Extends many leases at once, or looks how long they still run.
--
-- KEYS     locks
-- ARGV     for each lock: lease in milliseconds, 0 to leave it as it is; holder
--
-- Returns the server's clock (seconds, microseconds), then for each lock 0 (the holder does not hold it; it is never
-- created anew), or else 1 (extended); of a lease that was left as it is the remaining milliseconds instead, at least 1,
-- or -1 if it has no end.
--
-- Data of another type under one lock's name is an error that must not keep the others from being renewed.
local reply = redis.call('time')
reply[1], reply[2] = tonumber(reply[1]), tonumber(reply[2])
for i, lock in ipairs(KEYS) do
    local held = redis.pcall('hexists', lock, ARGV[2 * i])
    if held == 1 and ARGV[2 * i - 1] ~= '0' then
        redis.call('pexpire', lock, ARGV[2 * i - 1])
        reply[i + 2] = 1
    elseif held == 1 then
        local left = redis.call('pttl', lock)
        reply[i + 2] = left == 0 and 1 or left
    elseif held == 0 or string.find(held.err, 'WRONGTYPE', 1, true) then
        reply[i + 2] = 0
    else
        return held
    end
end
return reply
