-- Takes all free permits of a semaphore.
--
-- KEYS[1]  the semaphore: a number, the free permits
-- ARGV[1]  its channel; not a key, because a user's key patterns need not cover it
-- ARGV[2]  common part of the names of the semaphore's other keys, all in the semaphore's slot
-- ARGV[3]  request slot, a part of the name of the key that stores the reply
-- ARGV[4]  serial number of the request; later requests in the slot have higher numbers
-- ARGV[5]  time in milliseconds for which the server stores the reply
-- ARGV[6]  PUBLISH or SPUBLISH: the waiters' way to listen
--
-- Returns their number. If the key has other data, the script changes nothing and returns the error WRONGTYPE.
local free = number or 0
if free <= 0 then
    return answer(0)
end
redis.call('decrby', KEYS[1], free)
return answer(free)
