-- Lowers a writer's hold count. The last release frees the lock, or leaves it to the writer's own read holds. A writer
-- that stops waiting withdraws its mark, so that readers no longer yield to it. In all these cases the script notifies
-- the waiters.
--
-- KEYS[1]  the lock
-- ARGV[1]  its channel; not a key, because a user's key patterns need not cover it
-- ARGV[2]  holder, with `:write`
-- ARGV[3]  the holder's hold count after this call
-- ARGV[4]  PUBLISH or SPUBLISH: the waiters' way to listen; empty to send no message
-- ARGV[5]  common part of the names of the lock's other keys, all in the lock's slot
--
-- Returns 1 plus the number of receivers (released), 0 (still held) or nil. Returns -1 if the script released the lock
-- without a message, or if the server refused the message. Nil means that this holder does not write, or that the key
-- is not a read-write lock. The script has then not changed the lock.
local lock, holder, tag = KEYS[1], ARGV[2], ARGV[5]
local found = redis.pcall('hmget', lock, 'mode', holder)
if found.err then
    if string.find(found.err, 'WRONGTYPE', 1, true) then
        return nil
    end
    return found
end
local held = found[1] == 'write' and found[2]
if ARGV[3] ~= '0' or not held then
    -- This HDEL removes nothing. A primary that became a replica refuses it. A server without memory refuses a script's
    -- first write if that write may need memory, but no later write.
    redis.call('hdel', lock, '')
end
if ARGV[3] ~= '0' then
    if held then
        redis.call('hset', lock, holder, ARGV[3])
    end
    return held and 0 or nil
end
-- A holder does not wait any more, because its grant has withdrawn its mark.
local waits = tag .. ':wheellock_writer'
local waited = not held and redis.call('get', waits) == holder
if waited then
    redis.call('del', waits)
end
if held then
    -- This step comes before all changes, because a node may refuse its commands.
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
    -- A user without permission for the channel still frees locks. The waiters then notice the release when they poll.
    local heard = ARGV[4] ~= '' and redis.pcall(ARGV[4], ARGV[1], '1')
    if held and type(heard) == 'number' then
        return 1 + heard
    end
end
return held and -1 or nil
