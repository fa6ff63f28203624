-- Marks that a contender polls for a lock, and that no message reaches this contender.
--
-- KEYS[1]  the lock
-- ARGV[1]  common part of the names of all keys that belong to the lock, in the lock's slot
-- ARGV[2]  lifetime of the mark in milliseconds
--
-- Returns OK. A server without memory refuses the mark. A server also refuses it if the user's key patterns do not
-- cover the mark. Then there is no mark.
return redis.call('set', ARGV[1] .. ':wheellock_poller', '1', 'px', ARGV[2])
