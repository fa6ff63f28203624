-- Ends the holds of a fair lock, whatever its holders, and notifies the head of the queue. A spent owner keeps the lock
-- for a head start, as in `force_release.lua`.
--
-- KEYS[1]  the lock
-- ARGV[1]  its channel; a waiter's own channel has the holder behind it; neither is a key, because a user's key
--          patterns need not cover them
-- ARGV[2]  PUBLISH or SPUBLISH: the waiters' way to listen
-- ARGV[3]  spent owner
-- ARGV[4]  head start in milliseconds
-- ARGV[5]  common part of the names of the lock's other keys, all in the lock's slot
--
-- Returns 1 if the lock was held, 0 if it was free. If the key has other data or another kind of lock, the script
-- changes nothing and returns the error WRONGTYPE.
local held = holders_of(KEYS[1])
if held.err then
    return held
end
if call('del', KEYS[1]) == 0 then
    return 0
end
call('hset', KEYS[1], ARGV[3], '1')
call('pexpire', KEYS[1], ARGV[4])
tell_first(ARGV[2], ARGV[1])
return 1
