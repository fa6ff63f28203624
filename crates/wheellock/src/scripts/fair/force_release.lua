-- Frees a fair lock, no matter who holds it, and tells the first in the queue.
--
-- KEYS[1]  the lock
-- ARGV[1]  its channel; a waiter's own has the holder behind it. Not a key, because a user's key patterns need not cover it
-- ARGV[2]  PUBLISH or SPUBLISH: how the waiters listen
-- ARGV[3]  what the keys that belong to the lock have in common, in the lock's slot
--
-- Returns 1 if the lock was held, 0 if it was free; the error WRONGTYPE, with nothing changed, if what is there is no lock.
local held = holders_of(KEYS[1])
if held.err then
    return held
end
if call('del', KEYS[1]) == 0 then
    return 0
end
tell_first(ARGV[2], ARGV[1])
return 1
