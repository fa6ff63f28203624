-- Brings a reader's hold count down; with the last hold whose lease runs the lock goes, and waiters are told.
--
-- KEYS[1]  the lock
-- ARGV[1]  its channel; not a key, because a user's key patterns need not cover it
-- ARGV[2]  holder
-- ARGV[3]  the holder's hold count once this call has succeeded
-- ARGV[4]  PUBLISH or SPUBLISH: how the waiters listen
-- ARGV[5]  what the keys that belong to the lock have in common, in the lock's slot
--
-- Returns 1 (given back, or nobody reads any more), 0 (still held) or nil (this holder does not read, or what is there is no read-write lock; nothing
-- was changed).
local lock, holder, count, tag = KEYS[1], ARGV[2], tonumber(ARGV[3]), ARGV[5]
local found = redis.pcall('hmget', lock, 'mode', holder)
if found.err then
    if string.find(found.err, 'WRONGTYPE', 1, true) then
        return nil
    end
    return found
end
local mode, held = found[1], tonumber(found[2])
if (mode ~= 'read' and mode ~= 'write') or not held then
    return nil
end
local last = count == 0 and redis.call('hlen', lock) == 2
if last and held == 1 and mode == 'read' then
    -- What most releases are: nobody else is in the way, and nobody's lease is of interest.
    redis.call('del', tag .. ':' .. holder .. ':rwlock_timeout:1', lock)
    redis.pcall(ARGV[4], ARGV[1], '0')
    return 1
end
-- How much longer the lock lives on its own account is told by what is left of the longest lease given back here.
local longest = 0
for hold = count + 1, math.min(held, count + 1000) do
    local timeout = tag .. ':' .. holder .. ':rwlock_timeout:' .. hold
    longest = math.max(longest, redis.call('pttl', timeout))
    redis.call('del', timeout)
end
local lived = redis.call('pttl', lock)
if count > 0 then
    redis.call('hset', lock, holder, count)
else
    redis.call('hdel', lock, holder)
end
-- A writer's lease is its own; and where the lock outlives what was given back, another reader's lease is why. Up to Redis 7.0
-- time goes on inside a script: of two leases set by one call the second may end 1 or 2 ms later.
if mode == 'read' and lived >= 0 and longest + 2 >= lived or last then
    local left = longest_read_lease(lock, tag, lived)
    if left > 0 then
        if left ~= lived then
            redis.call('pexpire', lock, left)
        end
    elseif count == 0 or mode == 'read' then
        -- Readers whose leases have ended hold nothing.
        redis.call('del', lock)
        -- A user without the channel frees locks all the same; waiters then find out by asking.
        redis.pcall(ARGV[4], ARGV[1], '0')
        return 1
    end
end
return count > 0 and 0 or 1
