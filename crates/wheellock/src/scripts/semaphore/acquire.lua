-- Acquires permits of a semaphore, all or none.
--
-- KEYS[1]  the semaphore: a number, the free permits
-- ARGV[1]  time in milliseconds for which the server stores the holder's permits
-- ARGV[2]  holder
-- ARGV[3]  number of permits that the holder has after this call
-- ARGV[4]  common part of the names of the semaphore's other keys, all in the semaphore's slot
--
-- Returns 1 (the holder had no permits) or 2 (it had these permits already). The number of free permits after this call
-- follows. Returns -1 if too few permits are free. The server does not know for how long. If the key has other data,
-- the script changes nothing and returns the error WRONGTYPE.
--
-- The script sets the holder's number of permits and does not increment it. So a call counts once, even if the caller
-- repeats it because the reply was lost. A call that arrives after its own withdrawal finds a stored 0, and the script
-- refuses it.
local semaphore, count, has = KEYS[1], tonumber(ARGV[3]), ARGV[4] .. ':wheellock_permits:' .. ARGV[2]
local free = number or 0
-- While a cluster moves the slot, the keys may be on two nodes. A node then refuses this command for both keys.
local found = redis.pcall('exists', semaphore, has)
if type(found) == 'table' then
    return found
end
local had = found > (number and 1 or 0) and redis.call('get', has)
if had then
    if tonumber(had) ~= count then
        return -1
    end
    redis.call('pexpire', has, ARGV[1])
    return { 2, free }
end
if free < count then
    return -1
end
redis.call('set', has, count, 'px', ARGV[1])
local taken = redis.pcall('decrby', semaphore, count)
if type(taken) == 'table' then
    redis.call('del', has)
    return taken
end
return { 1, free - count }
