-- Frees a lock of a single instance, whatever its holder, and notifies the waiters.
--
-- KEYS[1]  the lock
-- ARGV[1]  its channel; not a key, because a user's key patterns need not cover it
-- ARGV[2]  PUBLISH or SPUBLISH: the waiters' way to listen
--
-- Returns 1 if the lock was held, 0 if it was free. If the key is not a string, the script changes nothing and returns
-- the error WRONGTYPE.
local token = redis.pcall('get', KEYS[1])
if type(token) == 'table' then
    return token
end
if redis.call('del', KEYS[1]) == 1 then
    -- A user without permission for the channel still frees locks. The waiters then notice the release when they poll.
    redis.pcall(ARGV[2], ARGV[1], '0')
    return 1
end
return 0
