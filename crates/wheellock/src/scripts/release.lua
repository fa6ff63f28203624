-- Lowers a holder's hold count. At zero the script removes the holder's field. With the last field the lock is free,
-- and the script notifies the waiters.
--
-- KEYS[1]  the lock
-- ARGV[1]  its channel; not a key, because a user's key patterns need not cover it
-- ARGV[2]  holder
-- ARGV[3]  the holder's hold count after this call
-- ARGV[4]  PUBLISH or SPUBLISH: the waiters' way to listen; empty to send no message
--
-- Returns 1 plus the number of receivers (released), 0 (still held) or nil (this holder does not hold it). Returns -1
-- if the script released the lock without a message, or if the server refused the message. Returns nil, too, if the key
-- is not a lock. With nil the script has changed nothing.
local outer = tonumber(ARGV[3]) > 0
local found
if outer then
    found = redis.pcall('hexists', KEYS[1], ARGV[2])
else
    found = redis.pcall('hlen', KEYS[1])
end
if type(found) ~= 'number' then
    if string.find(found.err, 'WRONGTYPE', 1, true) then
        return nil
    end
    return found
end
if outer or found == 0 then
    -- This HDEL removes nothing. A primary that became a replica refuses it. A server without memory refuses a script's
    -- first write if that write may need memory, but no later write.
    redis.call('hdel', KEYS[1], '')
    if found == 0 then
        return nil
    end
    redis.call('hset', KEYS[1], ARGV[2], ARGV[3])
    return 0
end
-- This must be the last command on the key. A cluster node that exports the slot lets no script access a key that is
-- gone.
if redis.call('hdel', KEYS[1], ARGV[2]) == 0 then
    return nil
end
-- A lock of another kind may have holders in the same hash. Then the lock is not free yet.
if found == 1 then
    -- A user without permission for the channel still frees locks. The waiters then notice the release when they poll.
    local heard = ARGV[4] ~= '' and redis.pcall(ARGV[4], ARGV[1], '0')
    return type(heard) == 'number' and 1 + heard or -1
end
return 1
