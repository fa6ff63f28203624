-- Releases one permit and notifies the waiters.
--
-- KEYS[1]  the semaphore: a number, the free permits
-- ARGV[1]  its channel; not a key, because a user's key patterns need not cover it
-- ARGV[2]  the permit's id
-- ARGV[3]  0
-- ARGV[4]  PUBLISH or SPUBLISH: the waiters' way to listen
-- ARGV[5]  common part of the names of the semaphore's other keys, all in the semaphore's slot
--
-- Returns 1 (released) or nil (there is no such permit any more, or its lease has ended). A permit whose lease has
-- ended is released nevertheless.
local leases = ARGV[5] .. ':timeout'
local ends = redis.pcall('zscore', leases, ARGV[2])
if type(ends) ~= 'string' then
    if not ends then
        -- While a cluster moves the slot, a missing key may still be on the other node. The importing node then refuses
        -- this command for both keys, and the script ends.
        redis.call('exists', KEYS[1], leases)
        -- This ZREM removes nothing. A primary that became a replica refuses it.
        redis.call('zrem', leases, '')
    end
    if type(ends) == 'table' and not string.find(ends.err, 'WRONGTYPE', 1, true) then
        return ends
    end
    return nil
end
-- A semaphore that was deleted or overwritten with other data does not get its permits back.
local free = redis.pcall('get', KEYS[1])
-- A server without memory accepts ZREM as the first write, and then refuses no later write.
redis.call('zrem', leases, ARGV[2])
if type(free) == 'string' and string.find(free, '^%-?%d+$') then
    free = redis.pcall('incrby', KEYS[1], 1)
    if type(free) == 'table' then
        return free
    end
    if free > 0 then
        -- A user without permission for the channel still releases permits. The waiters then notice the release when
        -- they poll.
        redis.pcall(ARGV[4], ARGV[1], free)
    end
end
local time = redis.call('time')
if tonumber(ends) <= time[1] * 1000 + math.floor(time[2] / 1000) then
    return nil
end
return 1
