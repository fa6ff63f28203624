-- Ends the hold of a lock of a single instance, whatever its holder, and notifies the waiters. A spent owner keeps the
-- lock for a head start, as in `force_release.lua`.
--
-- KEYS[1]  the lock
-- ARGV[1]  its channel; not a key, because a user's key patterns need not cover it
-- ARGV[2]  PUBLISH or SPUBLISH: the waiters' way to listen
-- ARGV[3]  token of the spent owner
-- ARGV[4]  head start in milliseconds
--
-- Returns 1 if the lock was held, 0 if it was free. If the key is not a string, the script changes nothing and returns
-- the error WRONGTYPE.
local token = redis.pcall('get', KEYS[1])
if type(token) == 'table' then
    return token
end
if redis.call('del', KEYS[1]) == 1 then
    redis.call('set', KEYS[1], ARGV[3], 'px', ARGV[4])
    -- A user without permission for the channel still frees locks. The waiters then notice the release when they poll.
    redis.pcall(ARGV[2], ARGV[1], '0')
    return 1
end
return 0
