-- Adds permits to a semaphore, or takes permits away. If it adds permits and some are free, it notifies the waiters.
--
-- KEYS[1]  the semaphore: a number, the free permits
-- ARGV[1]  its channel; not a key, because a user's key patterns need not cover it
-- ARGV[2]  common part of the names of the semaphore's other keys, all in the semaphore's slot
-- ARGV[3]  request slot, a part of the name of the key that stores the reply
-- ARGV[4]  serial number of the request; later requests in the slot have higher numbers
-- ARGV[5]  time in milliseconds for which the server stores the reply
-- ARGV[6]  PUBLISH or SPUBLISH: the waiters' way to listen
-- ARGV[7]  number of permits to add; negative to take permits away
--
-- Returns the number of free permits after this call. If the key has other data, the script changes nothing and returns
-- the error WRONGTYPE.
local free = redis.pcall('incrby', KEYS[1], ARGV[7])
if type(free) == 'table' then
    return free
end
if free > 0 and tonumber(ARGV[7]) > 0 then
    redis.pcall(ARGV[6], ARGV[1], free)
end
return answer(free)
