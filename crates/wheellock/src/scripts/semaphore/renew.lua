-- Extends the time for which the server stores the permits of many holders, or reads the remaining time.
--
-- KEYS     the semaphores
-- ARGV     for each semaphore: time in milliseconds, 0 to leave it as it is; holder; common part of the names of the
--          semaphore's other keys
--
-- Returns the server's time (seconds, microseconds). For each semaphore then follows 0 (the holder has no permits) or 1
-- (extended). If the time stays as it is, its remaining milliseconds replace the 1. They are at least 1, or -1 if the
-- time has no end.
local reply = redis.call('time')
reply[1], reply[2] = tonumber(reply[1]), tonumber(reply[2])
for i = 1, #KEYS do
    local lease, has = ARGV[3 * i - 2], ARGV[3 * i] .. ':wheellock_permits:' .. ARGV[3 * i - 1]
    local had = redis.call('get', has)
    if not had then
        -- While a cluster moves the slot, a missing key may still be on the other node. The importing node then refuses
        -- this command for both keys, and the script ends.
        redis.call('exists', KEYS[i], has)
    end
    if tonumber(had or 0) == 0 then
        reply[i + 2] = 0
    elseif lease ~= '0' then
        redis.call('pexpire', has, lease)
        reply[i + 2] = 1
    else
        local left = redis.call('pttl', has)
        reply[i + 2] = left == 0 and 1 or left
    end
end
return reply
