-- Makes a semaphore have so many permits in all, those included that are taken, and tells the waiters if any are free then.
--
-- KEYS[1]  the semaphore: a number, the permits that are free
-- ARGV[1]  its channel; not a key, because a user's key patterns need not cover it
-- ARGV[2]  what the keys that belong to it have in common, in its slot
-- ARGV[3]  where the request is remembered
-- ARGV[4]  the number of the request: higher than those that were remembered there before
-- ARGV[5]  for how long, in milliseconds, it is remembered
-- ARGV[6]  PUBLISH or SPUBLISH: how the waiters listen
-- ARGV[7]  how many
--
-- Returns the permits that are free then: a negative number if more are taken than there are to be.
local leases = ARGV[2] .. ':timeout'
local taken = redis.call('zcard', leases)
if taken == 0 then
    -- Where a cluster's slot moves, the node that it goes to refuses to say this of both while one may not have come.
    redis.call('exists', KEYS[1], leases)
end
local free = redis.call('incrby', KEYS[1], tonumber(ARGV[7]) - (number or 0) - taken)
free = free + reap(KEYS[1], leases, now)
if free > 0 then
    redis.pcall(ARGV[6], ARGV[1], free)
end
return answer(free)
