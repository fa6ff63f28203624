-- Brings a holder's hold count down; at zero its field goes, and with the last field the lock: then waiters are told.
--
-- KEYS[1]  the lock
-- ARGV[1]  its channel; not a key, because a user's key patterns need not cover it
-- ARGV[2]  holder
-- ARGV[3]  the holder's hold count once this call has succeeded
-- ARGV[4]  PUBLISH or SPUBLISH: how the waiters listen; empty to send no message
--
-- Returns 1 and the number of receivers (released), -1 (released, and the message was refused), 0 (still held) or nil (this holder
-- does not hold it, or what is there is not a lock; nothing was changed).
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
if found == 0 then
    return nil
end
if outer then
    -- Removes nothing: a server without memory refuses a script's first write if it could need some, and no later one.
    redis.call('hdel', KEYS[1], '')
    redis.call('hset', KEYS[1], ARGV[2], ARGV[3])
    return 0
end
-- The last command on the key: a cluster's node that gives the slot away lets no script touch a key that is gone.
if redis.call('hdel', KEYS[1], ARGV[2]) == 0 then
    return nil
end
-- Locks of another kind may have entered the same hash.
if found == 1 then
    -- A user without the channel frees locks all the same; waiters then find out by asking.
    local heard = ARGV[4] ~= '' and redis.pcall(ARGV[4], ARGV[1], '0')
    return type(heard) == 'number' and 1 + heard or -1
end
return 1
