-- Acquires one hold of a lock and returns its fencing token, or returns the remaining milliseconds of the present
-- lease.
--
-- KEYS[1]  the lock: a hash, holder -> hold count
-- ARGV[1]  lease in milliseconds
-- ARGV[2]  holder
-- ARGV[3]  the holder's hold count after this call; a free lock gets the count 1
-- ARGV[4]  common part of the names of the lock's other keys, all in the lock's slot
--
-- Returns 1 (the lock was free) or 2 (the holder had it already). The token follows. If another holder has the lock,
-- returns only the remaining milliseconds. These are -1 if the lease has no end. If the key has other data or another
-- kind of lock, the script changes nothing and returns the error WRONGTYPE.
--
-- The token is greater than all earlier tokens, even if the server has lost them. A new token is at least the server's
-- time in microseconds. A counter does not pass this time unless it rises more than a million times per second.
local lock, holder = KEYS[1], ARGV[2]
local counter = 'redisson_lock_token:' .. ARGV[4]
local held = false
if redis.call('exists', lock) == 1 then
    local holders = holders_of(lock)
    if holders.err then
        return holders
    end
    held = holders[holder]
    if not held then
        return redis.call('pttl', lock)
    end
end
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
if not held or not stored then
    local time = redis.call('time')
    local now = time[1] * 1000000 + time[2]
    if (tonumber(stored) or 0) < now then
        stored = string.format('%.0f', now)
        redis.call('set', counter, stored)
    else
        redis.call('incr', counter)
        -- Read as text, because Lua's numbers are exact only up to 2^53.
        stored = redis.call('get', counter)
    end
end
if not held then
    redis.call('hset', lock, holder, '1')
    redis.call('pexpire', lock, ARGV[1])
    return {1, stored}
end
redis.call('hset', lock, holder, ARGV[3])
if redis.call('pttl', lock) < tonumber(ARGV[1]) then
    redis.call('pexpire', lock, ARGV[1])
end
return {2, stored}
