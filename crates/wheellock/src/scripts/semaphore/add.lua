-- Adds permits to a semaphore, or takes them away, and tells the waiters if any are free then.
--
-- KEYS[1]  the semaphore: a number, the permits that are free
-- ARGV[1]  its channel; not a key, because a user's key patterns need not cover it
-- ARGV[2]  what the keys that belong to it have in common, in its slot
-- ARGV[3]  where the request is remembered
-- ARGV[4]  the number of the request: higher than those that were remembered there before
-- ARGV[5]  for how long, in milliseconds, it is remembered
-- ARGV[6]  PUBLISH or SPUBLISH: how the waiters listen
-- ARGV[7]  how many; negative to take them away
--
-- Returns the permits that are free then; the error WRONGTYPE, with nothing changed, if there is no number under the name.
local free = redis.pcall('incrby', KEYS[1], ARGV[7])
if type(free) == 'table' then
    return free
end
if free > 0 and tonumber(ARGV[7]) > 0 then
    redis.pcall(ARGV[6], ARGV[1], free)
end
return answer(free)
