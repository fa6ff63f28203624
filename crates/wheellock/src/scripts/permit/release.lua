-- Gives one permit back and tells the waiters.
--
-- KEYS[1]  the semaphore: a number, the permits that are free
-- ARGV[1]  its channel; not a key, because a user's key patterns need not cover it
-- ARGV[2]  the permit's id
-- ARGV[3]  0
-- ARGV[4]  PUBLISH or SPUBLISH: how the waiters listen
-- ARGV[5]  what the keys that belong to the semaphore have in common, in its slot
--
-- Returns 1 (given back) or nil (there is no such permit any more, or its lease has ended; that one is given back all the same).
local leases = ARGV[5] .. ':timeout'
local ends = redis.pcall('zscore', leases, ARGV[2])
if type(ends) ~= 'string' then
    if not ends then
        -- Where a cluster's slot moves, the node that it goes to refuses to say this of both while one may not have come.
        redis.call('exists', KEYS[1], leases)
    end
    if type(ends) == 'table' and not string.find(ends.err, 'WRONGTYPE', 1, true) then
        return ends
    end
    return nil
end
-- Who deleted the semaphore, or put other data into its place, wants none of its permits back.
local free = redis.pcall('get', KEYS[1])
-- The first write, which a server without memory does not refuse: then it refuses no later one.
redis.call('zrem', leases, ARGV[2])
if type(free) == 'string' and string.find(free, '^%-?%d+$') then
    free = redis.pcall('incrby', KEYS[1], 1)
    if type(free) == 'table' then
        return free
    end
    if free > 0 then
        -- A user without the channel gives permits back all the same; waiters then find out by asking.
        redis.pcall(ARGV[4], ARGV[1], free)
    end
end
local time = redis.call('time')
if tonumber(ends) <= time[1] * 1000 + math.floor(time[2] / 1000) then
    return nil
end
return 1
