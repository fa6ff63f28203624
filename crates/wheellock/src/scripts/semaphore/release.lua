-- Brings the permits of a holder down, gives the others back to the semaphore and tells the waiters.
--
-- KEYS[1]  the semaphore: a number, the permits that are free
-- ARGV[1]  its channel; not a key, because a user's key patterns need not cover it
-- ARGV[2]  holder
-- ARGV[3]  how many permits the holder has once this call has succeeded
-- ARGV[4]  PUBLISH or SPUBLISH: how the waiters listen
-- ARGV[5]  what the keys that belong to the semaphore have in common, in its slot
--
-- Returns 1 (given back, now or by the same call before) or nil (the holder has nothing, or fewer than that, or there is no
-- semaphore; nothing was changed).
local semaphore, count, has = KEYS[1], tonumber(ARGV[3]), ARGV[5] .. ':wheellock_permits:' .. ARGV[2]
local had = redis.call('get', has)
if not had then
    -- Where a cluster's slot moves, the node that it goes to refuses to say this of both while one may not have come.
    redis.call('exists', semaphore, has)
end
had = tonumber(had or 0)
if had == count and count > 0 then
    return 1
end
if had <= count then
    if had == 0 and count == 0 then
        -- What this takes back may still be on its way, on a connection that has broken since. The first write is one that a server
        -- without memory does not refuse: then it refuses no later one.
        redis.call('pexpire', has, 60000)
        redis.call('set', has, 0, 'px', 60000)
    end
    return nil
end
-- Who deleted the semaphore, or put other data into its place, wants none of its permits back.
local free = redis.pcall('get', semaphore)
local is_there = type(free) == 'string' and string.find(free, '^%-?%d+$')
-- What needs no memory is written first: a server without memory refuses a script's first write if it could need some, and no later one.
if count > 0 then
    local left = redis.call('pttl', has)
    if left > 0 then
        redis.call('pexpire', has, left)
    end
    redis.call('set', has, count, 'keepttl')
else
    redis.call('del', has)
end
if not is_there then
    return nil
end
free = redis.pcall('incrby', semaphore, had - count)
if type(free) == 'table' then
    return free
end
if free > 0 then
    -- A user without the channel gives permits back all the same; waiters then find out by asking.
    redis.pcall(ARGV[4], ARGV[1], free)
end
return 1
