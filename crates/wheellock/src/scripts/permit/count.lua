-- Counts the permits of a semaphore.
--
-- KEYS[1]  the semaphore: a number, the free permits
-- ARGV[1]  common part of the names of the semaphore's other keys, all in the semaphore's slot
--
-- Returns the number of free permits and the number of taken permits. Permits whose leases have ended count as free.
-- Returns the error WRONGTYPE if the key has other data.
local leases = ARGV[1] .. ':timeout'
local ended, taken = redis.call('zcount', leases, '-inf', now), redis.call('zcard', leases)
if taken == 0 then
    -- While a cluster moves the slot, a missing key may still be on the other node. The importing node then refuses
    -- this command for both keys, and the script ends.
    redis.call('exists', KEYS[1], leases)
end
return { (number or 0) + ended, taken - ended }
