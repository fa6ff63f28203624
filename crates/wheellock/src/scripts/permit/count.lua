-- Counts the permits of a semaphore.
--
-- KEYS[1]  the semaphore: a number, the permits that are free
-- ARGV[1]  what the keys that belong to the semaphore have in common, in its slot
--
-- Returns how many are free, those included whose leases have ended, and how many are taken.
local leases = ARGV[1] .. ':timeout'
local ended = redis.call('zcount', leases, '-inf', now)
local free = tonumber(redis.call('get', KEYS[1]) or 0)
if not free then
    return redis.error_reply('WRONGTYPE what is under this name is no number')
end
return { free + ended, redis.call('zcard', leases) - ended }
