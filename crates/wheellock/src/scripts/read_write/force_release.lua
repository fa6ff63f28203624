-- Frees one side of a read-write lock, no matter who holds it, and tells the waiters.
--
-- KEYS[1]  the lock
-- ARGV[1]  its channel; not a key, because a user's key patterns need not cover it
-- ARGV[2]  PUBLISH or SPUBLISH: how the waiters listen
-- ARGV[3]  what the keys that belong to the lock have in common, in the lock's slot
-- ARGV[4]  `read` or `write`: the side
--
-- Returns 1 if the lock was held in this way, 0 if not; the error WRONGTYPE, with nothing changed, if what is there is no such
-- lock.
local lock, tag, side = KEYS[1], ARGV[3], ARGV[4]
local mode = redis.pcall('hget', lock, 'mode')
if type(mode) == 'table' then
    return mode
end
if mode ~= side then
    if mode ~= 'read' and mode ~= 'write' and redis.call('exists', lock) == 1 then
        return redis.error_reply('WRONGTYPE what is under this name is no read-write lock')
    end
    return 0
end
-- A writer may read as well.
local holders, missing = redis.call('hgetall', lock), nil
for i = 1, #holders, 2 do
    for hold = 1, math.min(tonumber(holders[i + 1]) or 0, 1000) do
        local timeout = tag .. ':' .. holders[i] .. ':rwlock_timeout:' .. hold
        if redis.call('del', timeout) == 0 and string.sub(holders[i], -6) ~= ':write' then
            missing = timeout
        end
    end
end
if missing then
    -- Where a cluster's slot moves, the node that it goes to refuses to say this of both while one may not have come.
    redis.call('exists', lock, missing)
end
redis.call('del', lock)
redis.pcall(ARGV[2], ARGV[1], side == 'read' and '0' or '1')
return 1
