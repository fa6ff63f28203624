-- Frees a lock whoever holds it, and tells the waiters.
--
-- KEYS[1]  the lock
-- KEYS[2]  its channel
--
-- Returns 1 if the lock was held, 0 if it was free.
if redis.call('del', KEYS[1]) == 1 then
    -- A user without the channel frees locks all the same; waiters then find out by asking.
    redis.pcall('publish', KEYS[2], '0')
    return 1
end
return 0
