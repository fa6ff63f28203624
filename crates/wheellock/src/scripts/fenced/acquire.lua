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
local lock, holder = KEYS[1], ARGV[2]
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
local token = token_of_grant(lock, ARGV[4], held)
if type(token) == 'table' then
    return token
end
if not held then
    redis.call('hset', lock, holder, '1')
    redis.call('pexpire', lock, ARGV[1])
    return {1, token}
end
redis.call('hset', lock, holder, ARGV[3])
if redis.call('pttl', lock) < tonumber(ARGV[1]) then
    redis.call('pexpire', lock, ARGV[1])
end
return {2, token}
