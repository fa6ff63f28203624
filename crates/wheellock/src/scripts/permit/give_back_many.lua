-- Gives permits back that anybody may have taken, all or none, and tells the waiters.
--
-- KEYS[1]  the semaphore: a number, the permits that are free
-- ARGV[1]  its channel; not a key, because a user's key patterns need not cover it
-- ARGV[2]  what the keys that belong to it have in common, in its slot
-- ARGV[3]  where the request is remembered
-- ARGV[4]  the number of the request: higher than those that were remembered there before
-- ARGV[5]  for how long, in milliseconds, it is remembered
-- ARGV[6]  PUBLISH or SPUBLISH: how the waiters listen
-- ARGV[7]  the permits' ids, 16 bytes each
--
-- Returns 1, or 0, with nothing changed, if one of the permits is not there or its lease has ended; the error WRONGTYPE, with nothing
-- changed, if there is no number under the name.
local leases, ids = ARGV[2] .. ':timeout', {}
for at = 1, #ARGV[7], 16 do
    local id = string.sub(ARGV[7], at, at + 15)
    local ends = redis.call('zscore', leases, id)
    if not ends then
        -- Where a cluster's slot moves, the node that it goes to refuses to say this of both while one may not have come.
        redis.call('exists', KEYS[1], leases)
    end
    if not ends or tonumber(ends) <= now then
        return answer(0)
    end
    ids[#ids + 1] = id
end
local given_back = 0
for i = 1, #ids do
    -- The caller may have named one twice.
    given_back = given_back + redis.call('zrem', leases, ids[i])
end
local free = redis.call('incrby', KEYS[1], given_back)
if free > 0 then
    redis.pcall(ARGV[6], ARGV[1], free)
end
return answer(1)
