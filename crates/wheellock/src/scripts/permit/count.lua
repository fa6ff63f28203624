-- Counts the permits of a semaphore.
--
-- KEYS[1]  the semaphore: a number, the permits that are free
-- ARGV[1]  what the keys that belong to the semaphore have in common, in its slot
--
-- Returns how many are free, those included whose leases have ended, and how many are taken.
local leases = ARGV[1] .. ':timeout'
local ended, taken = redis.call('zcount', leases, '-inf', now), redis.call('zcard', leases)
if taken == 0 then
    -- Where a cluster's slot moves, the node that it goes to refuses to say this of both while one may not have come.
    redis.call('exists', KEYS[1], leases)
end
return { (number or 0) + ended, taken - ended }
