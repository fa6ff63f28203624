-- Gives a permit back that anybody may have taken, and tells the waiters.
--
-- KEYS[1]  the semaphore: a number, the permits that are free
-- ARGV[1]  its channel; not a key, because a user's key patterns need not cover it
-- ARGV[2]  what the keys that belong to it have in common, in its slot
-- ARGV[3]  where the request is remembered
-- ARGV[4]  the number of the request: higher than those that were remembered there before
-- ARGV[5]  for how long, in milliseconds, it is remembered
-- ARGV[6]  PUBLISH or SPUBLISH: how the waiters listen
-- ARGV[7]  the permit's id
--
-- Returns 1, or 0 if there is no such permit or its lease has ended; the error WRONGTYPE, with nothing changed, if there is no
-- number under the name.
local leases = ARGV[2] .. ':timeout'
local ends = redis.call('zscore', leases, ARGV[7])
if not ends then
    -- Where a cluster's slot moves, the node that it goes to refuses to say this of both while one may not have come.
    redis.call('exists', KEYS[1], leases)
    return answer(0)
end
redis.call('zrem', leases, ARGV[7])
local free = redis.call('incrby', KEYS[1], 1)
if free > 0 then
    redis.pcall(ARGV[6], ARGV[1], free)
end
return answer(tonumber(ends) > now and 1 or 0)
