-- Ends the holds of a lock, whatever its holders, and notifies the waiters. A spent owner keeps the lock for a head
-- start, so that the server can tell the former holders before the next grant.
--
-- KEYS[1]  the lock
-- ARGV[1]  its channel; not a key, because a user's key patterns need not cover it
-- ARGV[2]  PUBLISH or SPUBLISH: the waiters' way to listen
-- ARGV[3]  spent owner
-- ARGV[4]  head start in milliseconds
--
-- Returns 1 if the lock was held, 0 if it was free. If the key has other data or another kind of lock, the script
-- changes nothing and returns the error WRONGTYPE.
local held = holders_of(KEYS[1])
if held.err then
    return held
end
if redis.call('del', KEYS[1]) == 1 then
    redis.call('hset', KEYS[1], ARGV[3], '1')
    redis.call('pexpire', KEYS[1], ARGV[4])
    -- A user without permission for the channel still frees locks. The waiters then notice the release when they poll.
    redis.pcall(ARGV[2], ARGV[1], '0')
    return 1
end
return 0
