-- Marks that a contender polls for a lock, and that no message reaches it.
--
-- KEYS[1]  the lock
-- ARGV[1]  the common part of the names of all keys that belong to the lock, in the lock's slot
-- ARGV[2]  for how many milliseconds
--
-- Returns OK. A user whose key patterns do not cover the mark is refused, and so is a server without memory: then there is no mark.
return redis.call('set', ARGV[1] .. ':wheellock_poller', '1', 'px', ARGV[2])
