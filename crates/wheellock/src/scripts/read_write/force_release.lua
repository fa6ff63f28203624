-- Ends the holds of one side of a read-write lock, whatever its holders, and notifies the waiters. A spent writer keeps
-- both sides for a head start, as in `force_release.lua`.
--
-- KEYS[1]  the lock
-- ARGV[1]  its channel; not a key, because a user's key patterns need not cover it
-- ARGV[2]  PUBLISH or SPUBLISH: the waiters' way to listen
-- ARGV[3]  spent owner
-- ARGV[4]  head start in milliseconds
-- ARGV[5]  common part of the names of the lock's other keys, all in the lock's slot
-- ARGV[6]  `read` or `write`: the side
--
-- Returns 1 if this side was held, 0 if not. If the key is not a read-write lock, the script changes nothing and
-- returns the error WRONGTYPE.
local lock, tag, side = KEYS[1], ARGV[5], ARGV[6]
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
-- A writer may also read, so both sides may have leases of readers.
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
    -- While a cluster moves the slot, a missing key may still be on the other node. The importing node then refuses
    -- this command for both keys, and the script ends.
    redis.call('exists', lock, missing)
end
redis.call('del', lock)
redis.call('hset', lock, 'mode', 'write', string.gsub(ARGV[3], ':write$', '') .. ':write', '1')
redis.call('pexpire', lock, ARGV[4])
redis.pcall(ARGV[2], ARGV[1], side == 'read' and '0' or '1')
return 1
