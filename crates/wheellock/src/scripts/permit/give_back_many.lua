-- Releases permits by their ids, all or none, whichever processes acquired them, and notifies the waiters.
--
-- KEYS[1]  the semaphore: a number, the free permits
-- ARGV[1]  its channel; not a key, because a user's key patterns need not cover it
-- ARGV[2]  common part of the names of the semaphore's other keys, all in the semaphore's slot
-- ARGV[3]  request slot, a part of the name of the key that stores the reply
-- ARGV[4]  serial number of the request; later requests in the slot have higher numbers
-- ARGV[5]  time in milliseconds for which the server stores the reply
-- ARGV[6]  PUBLISH or SPUBLISH: the waiters' way to listen
-- ARGV[7]  the permits' ids, 16 bytes each
--
-- Returns 1. Returns 0 and changes nothing if one of the permits does not exist or its lease has ended. If the key has
-- other data, the script changes nothing and returns the error WRONGTYPE.
local leases, ids = ARGV[2] .. ':timeout', {}
for at = 1, #ARGV[7], 16 do
    local id = string.sub(ARGV[7], at, at + 15)
    local ends = redis.call('zscore', leases, id)
    if not ends then
        -- While a cluster moves the slot, a missing key may still be on the other node. The importing node then refuses
        -- this command for both keys, and the script ends.
        redis.call('exists', KEYS[1], leases)
    end
    if not ends or tonumber(ends) <= now then
        return answer(0)
    end
    ids[#ids + 1] = id
end
local given_back = 0
for i = 1, #ids do
    -- The caller may have named a permit twice.
    given_back = given_back + redis.call('zrem', leases, ids[i])
end
local free = redis.call('incrby', KEYS[1], given_back)
if free > 0 then
    redis.pcall(ARGV[6], ARGV[1], free)
end
return answer(1)
