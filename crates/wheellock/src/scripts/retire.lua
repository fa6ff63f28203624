-- Replaces a holder by a spent owner, which keeps the lock until a minimum time is over. Notifies the waiters, so that they
-- learn the remaining time. No process renews or releases the hold of a spent owner.
--
-- KEYS[1]  the lock: a hash, holder -> hold count
-- ARGV[1]  its channel; a fair lock's waiter has its own channel, with the waiter behind it; neither is a key, because a
--          user's key patterns need not cover it
-- ARGV[2]  holder
-- ARGV[3]  spent owner
-- ARGV[4]  remaining time in milliseconds
-- ARGV[5]  PUBLISH or SPUBLISH: the waiters' way to listen
-- ARGV[6]  common part of the names of the lock's other keys, all in the lock's slot
--
-- Returns 1 plus the number of receivers, or -1 if the server refused the message. Returns nil if the holder does not hold
-- the lock, or if the key is not a lock. A repeated call returns 1, and does not change the remaining time.
local held = redis.pcall('hexists', KEYS[1], ARGV[2])
if type(held) ~= 'number' then
    if string.find(held.err, 'WRONGTYPE', 1, true) then
        return nil
    end
    return held
end
if held == 0 then
    return redis.call('hexists', KEYS[1], ARGV[3]) == 1 and 1 or nil
end
-- This HDEL removes nothing. A server without memory refuses a script's first write if that write may need memory, but no
-- later write.
redis.call('hdel', KEYS[1], '')
redis.call('hset', KEYS[1], ARGV[3], '1')
redis.call('hdel', KEYS[1], ARGV[2])
-- A lock of another kind may have holders in the same hash. Their lease must not end earlier.
if redis.call('hlen', KEYS[1]) == 1 or redis.call('pttl', KEYS[1]) < tonumber(ARGV[4]) then
    redis.call('pexpire', KEYS[1], ARGV[4])
end
-- A user without permission for the channel still keeps the lock. The waiters then learn the time when they poll.
local heard = redis.pcall(ARGV[5], ARGV[1], '0')
local first = redis.pcall('lindex', 'redisson_lock_queue:' .. ARGV[6], '0')
if type(first) == 'string' then
    redis.pcall(ARGV[5], ARGV[1] .. ':' .. first, '0')
end
return type(heard) == 'number' and 1 + heard or -1
