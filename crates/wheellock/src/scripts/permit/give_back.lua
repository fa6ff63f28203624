-- Releases a permit by its id, whichever process acquired it, and notifies the waiters.
--
-- KEYS[1]  the semaphore: a number, the free permits
-- ARGV[1]  its channel; not a key, because a user's key patterns need not cover it
-- ARGV[2]  common part of the names of the semaphore's other keys, all in the semaphore's slot
-- ARGV[3]  request slot, a part of the name of the key that stores the reply
-- ARGV[4]  serial number of the request; later requests in the slot have higher numbers
-- ARGV[5]  time in milliseconds for which the server stores the reply
-- ARGV[6]  PUBLISH or SPUBLISH: the waiters' way to listen
-- ARGV[7]  the permit's id
--
-- Returns 1, or 0 if there is no such permit or its lease has ended. A permit whose lease has ended is released
-- nevertheless. If the key has other data, the script changes nothing and returns the error WRONGTYPE.
local leases = ARGV[2] .. ':timeout'
local ends = redis.call('zscore', leases, ARGV[7])
if not ends then
    -- While a cluster moves the slot, a missing key may still be on the other node. The importing node then refuses
    -- this command for both keys, and the script ends.
    redis.call('exists', KEYS[1], leases)
    return answer(0)
end
redis.call('zrem', leases, ARGV[7])
local free = redis.call('incrby', KEYS[1], 1)
if free > 0 then
    redis.pcall(ARGV[6], ARGV[1], free)
end
return answer(tonumber(ends) > now and 1 or 0)
