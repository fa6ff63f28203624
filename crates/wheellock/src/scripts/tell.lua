-- Notifies the waiters for a lock that is free and was released without a message.
--
-- KEYS[1]  the lock
-- ARGV[1]  its channel; not a key, because a user's key patterns need not cover it
-- ARGV[2]  PUBLISH or SPUBLISH: the waiters' way to listen
--
-- Returns the number of receivers, or nil if the lock is held. In that case its holder will notify the waiters.
if redis.call('exists', KEYS[1]) == 1 then
    return nil
end
return redis.call(ARGV[2], ARGV[1], '1')
