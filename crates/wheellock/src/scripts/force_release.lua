-- Frees a lock, no matter who holds it, and tells the waiters.
--
-- KEYS[1]  the lock
-- ARGV[1]  its channel; not a key, because a user's key patterns need not cover it
-- ARGV[2]  PUBLISH or SPUBLISH: how the waiters listen
--
-- Returns 1 if the lock was held, 0 if it was free; the error WRONGTYPE, with nothing changed, if what is there is no lock.
local held = holders_of(KEYS[1])
if held.err then
    return held
end
if redis.call('del', KEYS[1]) == 1 then
    -- A user without the channel frees locks all the same; waiters then find out by asking.
    redis.pcall(ARGV[2], ARGV[1], '0')
    return 1
end
return 0
