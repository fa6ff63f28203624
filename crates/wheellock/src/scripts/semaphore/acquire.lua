-- Takes permits of a semaphore, all or none.
--
-- KEYS[1]  the semaphore: a number, the permits that are free
-- ARGV[1]  for how long, in milliseconds, the server remembers what this holder has
-- ARGV[2]  holder
-- ARGV[3]  how many permits the holder has once this call has succeeded
-- ARGV[4]  what the keys that belong to the semaphore have in common, in its slot
--
-- Returns { 1, permits that are free then } (the holder had none before), { 2, .. } (it had these) or -1: too few are free, for
-- nobody knows how long. The error WRONGTYPE, with nothing changed, if there is no number under the name.
--
-- What a holder has is set, not incremented: a call that is repeated because its reply was lost counts once. One that was taken
-- back before it came finds that the holder is to have nothing.
local semaphore, count, has = KEYS[1], tonumber(ARGV[3]), ARGV[4] .. ':wheellock_permits:' .. ARGV[2]
local free = number or 0
-- Where a cluster's slot moves, a node refuses to say this of both while they may be on two nodes.
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
