-- Extends the leases of many locks at once, or reads their remaining time.
--
-- KEYS     the locks
-- ARGV     for each lock: lease in milliseconds, 0 to leave it as it is; holder
--
-- Returns the server's time (seconds, microseconds). For each lock then follows 0 (the holder does not hold it) or 1
-- (extended). The script never recreates a lock. If the lease stays as it is, its remaining milliseconds replace the 1.
-- They are at least 1, or -1 if the lease has no end.
--
-- Other data under the name of one lock must not stop the renewal of the others. So such a lock counts as not held.
--
-- The script reads all keys at its end. A server that tracks keys for this client forgets a key with each write, and
-- remembers it with the next read (observed on Redis 7.0).
local reply = redis.call('time')
reply[1], reply[2] = tonumber(reply[1]), tonumber(reply[2])
for i, lock in ipairs(KEYS) do
    local held = redis.pcall('hexists', lock, ARGV[2 * i])
    if held == 1 and ARGV[2 * i - 1] ~= '0' then
        redis.call('pexpire', lock, ARGV[2 * i - 1])
        reply[i + 2] = 1
    elseif type(held) == 'number' then
        -- This HDEL removes nothing. A primary that became a replica refuses it. The new primary may get this hold.
        redis.call('hdel', lock, '')
        local left = held == 1 and redis.call('pttl', lock)
        reply[i + 2] = left == 0 and 1 or left or 0
    elseif string.find(held.err, 'WRONGTYPE', 1, true) then
        reply[i + 2] = 0
    else
        return held
    end
end
redis.pcall('exists', unpack(KEYS))
return reply
