-- Brings a holder's hold count down; at zero the lock is free and waiters are told.
--
-- KEYS[1]  the lock
-- ARGV[1]  its channel; not a key, because a user's key patterns need not cover it
-- ARGV[2]  holder
-- ARGV[3]  the holder's hold count once this call has succeeded
-- ARGV[4]  PUBLISH or SPUBLISH: how the waiters listen
--
-- Returns 1 (the lock is free now), 0 (still held) or nil (this holder does not hold it; nothing was changed).
if redis.call('hexists', KEYS[1], ARGV[2]) == 0 then
    return nil
end
if tonumber(ARGV[3]) > 0 then
    redis.call('hset', KEYS[1], ARGV[2], ARGV[3])
    return 0
end
redis.call('del', KEYS[1])
-- A user without the channel frees locks all the same; waiters then find out by asking.
redis.pcall(ARGV[4], ARGV[1], '0')
return 1
