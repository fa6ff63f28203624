-- Counts the permits of a semaphore.
--
-- KEYS[1]  the semaphore: a number, the permits that are free
-- ARGV[1]  what the keys that belong to the semaphore have in common, in its slot
--
-- Returns how many are free, those included whose leases have ended, and how many are taken.
local leases = ARGV[1] .. ':timeout'
local ended = redis.call('zcount', leases, '-inf', now)
return { (number or 0) + ended, redis.call('zcard', leases) - ended }
