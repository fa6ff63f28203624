-- Sets the total number of a semaphore's permits, taken permits included. If permits are free then, notifies the
-- waiters.
--
-- KEYS[1]  the semaphore: a number, the free permits
-- ARGV[1]  its channel; not a key, because a user's key patterns need not cover it
-- ARGV[2]  common part of the names of the semaphore's other keys, all in the semaphore's slot
-- ARGV[3]  request slot, a part of the name of the key that stores the reply
-- ARGV[4]  serial number of the request; later requests in the slot have higher numbers
-- ARGV[5]  time in milliseconds for which the server stores the reply
-- ARGV[6]  PUBLISH or SPUBLISH: the waiters' way to listen
-- ARGV[7]  total number of permits
--
-- Returns the number of free permits after this call. It is negative if more permits are taken than the total. If the
-- key has other data, the script changes nothing and returns the error WRONGTYPE.
local leases = ARGV[2] .. ':timeout'
local taken = redis.call('zcard', leases)
if taken == 0 then
    -- While a cluster moves the slot, a missing key may still be on the other node. The importing node then refuses
    -- this command for both keys, and the script ends.
    redis.call('exists', KEYS[1], leases)
end
local free = redis.call('incrby', KEYS[1], tonumber(ARGV[7]) - (number or 0) - taken)
free = free + reap(KEYS[1], leases, now)
if free > 0 then
    redis.pcall(ARGV[6], ARGV[1], free)
end
return answer(free)
