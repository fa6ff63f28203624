-- Brings a writer's hold count down; with its last hold the lock is free, or its own read holds stay. Waiters are told of both.
-- A writer who waited and does so no longer takes back that readers stand behind it.
--
-- KEYS[1]  the lock
-- ARGV[1]  its channel; not a key, because a user's key patterns need not cover it
-- ARGV[2]  holder, with `:write`
-- ARGV[3]  the holder's hold count once this call has succeeded
-- ARGV[4]  PUBLISH or SPUBLISH: how the waiters listen; empty to send no message
-- ARGV[5]  what the keys that belong to the lock have in common, in the lock's slot
--
-- Returns 1 and the number of receivers (released), -1 (released, and the message was refused), 0 (still held) or nil (this holder
-- does not write, or what is there is not a read-write lock; nothing of it was changed).
local lock, holder, tag = KEYS[1], ARGV[2], ARGV[5]
local found = redis.pcall('hmget', lock, 'mode', holder)
if found.err then
    if string.find(found.err, 'WRONGTYPE', 1, true) then
        return nil
    end
    return found
end
if ARGV[3] ~= '0' then
    if found[1] ~= 'write' or not found[2] then
        return nil
    end
    -- Removes nothing: a server without memory refuses a script's first write if it could need some, and no later one.
    redis.call('hdel', lock, '')
    redis.call('hset', lock, holder, ARGV[3])
    return 0
end
local held = found[1] == 'write' and found[2]
-- Who holds waits no more: its grant took back that it did.
local waits = tag .. ':wheellock_writer'
local waited = not held and redis.call('get', waits) == holder
if waited then
    redis.call('del', waits)
end
if held then
    -- Before anything is changed: it may be refused.
    local left = redis.call('hlen', lock) > 2 and longest_read_lease(lock, tag) or 0
    if left > 0 then
        redis.call('hdel', lock, holder)
        redis.call('hset', lock, 'mode', 'read')
        redis.call('pexpire', lock, left)
    else
        redis.call('del', lock)
    end
end
if held or waited then
    -- A user without the channel frees locks all the same; waiters then find out by asking.
    local heard = ARGV[4] ~= '' and redis.pcall(ARGV[4], ARGV[1], '1')
    if held and type(heard) == 'number' then
        return 1 + heard
    end
end
return held and -1 or nil
