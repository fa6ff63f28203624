-- Takes one hold of a lock and says its fencing token, or says how long the present holder's lease still runs.
--
-- KEYS[1]  the lock: a hash, holder -> hold count
-- ARGV[1]  lease in milliseconds
-- ARGV[2]  holder
-- ARGV[3]  the holder's hold count once this call has succeeded
-- ARGV[4]  what the keys that belong to the lock have in common, in the lock's slot
--
-- Returns 1 (the lock was free) or 2 (the holder held it already), each with the token, or the present lease's remaining
-- milliseconds alone; the error WRONGTYPE, with nothing changed, if other data or another kind of lock is under the name.
--
-- The token is greater than every one before, also where the server has lost them: it is then the server's time in
-- microseconds, which no counter reaches that is raised less often than a million times a second.
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
    -- Where a cluster's slot moves, the node that it goes to refuses to say this of both while one may not have come.
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
        -- As text: a number of this script's language is exact up to 2^53 only.
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
