-- Lowers a holder's number of permits, returns the others to the semaphore and notifies the waiters.
--
-- KEYS[1]  the semaphore: a number, the free permits
-- ARGV[1]  its channel; not a key, because a user's key patterns need not cover it
-- ARGV[2]  holder
-- ARGV[3]  number of permits that the holder has after this call
-- ARGV[4]  PUBLISH or SPUBLISH: the waiters' way to listen
-- ARGV[5]  common part of the names of the semaphore's other keys, all in the semaphore's slot
--
-- Returns 1 (released, by this call or before by the same call) or nil. Nil means that the holder has no permits or too
-- few, or that there is no semaphore. The free permits are then unchanged.
local semaphore, count, has = KEYS[1], tonumber(ARGV[3]), ARGV[5] .. ':wheellock_permits:' .. ARGV[2]
local had = redis.call('get', has)
if not had then
    -- While a cluster moves the slot, a missing key may still be on the other node. The importing node then refuses
    -- this command for both keys, and the script ends.
    redis.call('exists', semaphore, has)
end
had = tonumber(had or 0)
if had == count and count > 0 then
    return 1
end
if had <= count then
    if had == 0 and count == 0 then
        -- The withdrawn acquire may still be on its way, on a connection that has broken since. The stored 0 refuses
        -- it. A server without memory accepts PEXPIRE as the first write, and then refuses no later write.
        redis.call('pexpire', has, 60000)
        redis.call('set', has, 0, 'px', 60000)
    end
    return nil
end
-- A semaphore that was deleted or overwritten with other data does not get its permits back.
local free = redis.pcall('get', semaphore)
local is_there = type(free) == 'string' and string.find(free, '^%-?%d+$')
-- PEXPIRE and DEL need no memory, so they come first. A server without memory refuses a script's first write if that
-- write may need memory, but no later write.
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
    -- A user without permission for the channel still releases permits. The waiters then notice the release when they
    -- poll.
    redis.pcall(ARGV[4], ARGV[1], free)
end
return 1
