-- Extends many leases at once.
--
-- KEYS     locks
-- ARGV     for each lock: lease in milliseconds, holder
--
-- Returns the server's clock (seconds, microseconds), then for each lock 1 (extended) or 0 (the holder does not hold it;
-- it is never created anew).
local reply = redis.call('time')
reply[1], reply[2] = tonumber(reply[1]), tonumber(reply[2])
for i, lock in ipairs(KEYS) do
    if redis.call('hexists', lock, ARGV[2 * i]) == 1 then
        redis.call('pexpire', lock, ARGV[2 * i - 1])
        reply[i + 2] = 1
    else
        reply[i + 2] = 0
    end
end
return reply
