-- Takes all permits of a semaphore that are free.
--
-- KEYS[1]  the semaphore: a number, the permits that are free
-- ARGV[1]  its channel; not a key, because a user's key patterns need not cover it
-- ARGV[2]  what the keys that belong to it have in common, in its slot
-- ARGV[3]  where the request is remembered
-- ARGV[4]  the number of the request: higher than those that were remembered there before
-- ARGV[5]  for how long, in milliseconds, it is remembered
-- ARGV[6]  PUBLISH or SPUBLISH: how the waiters listen
--
-- Returns how many; the error WRONGTYPE, with nothing changed, if there is no number under the name.
local free = number or 0
if free <= 0 then
    return answer(0)
end
redis.call('decrby', KEYS[1], free)
return answer(free)
