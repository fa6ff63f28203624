-- Removes a latch, and tells those who wait: there is nothing left to wait for.
--
-- KEYS[1]  the latch: a number, how often it is to be counted down
-- ARGV[1]  its channel; not a key, because a user's key patterns need not cover it
-- ARGV[2]  what the keys that belong to it have in common, in its slot
-- ARGV[3]  where the request is remembered
-- ARGV[4]  the number of the request: higher than those that were remembered there before
-- ARGV[5]  for how long, in milliseconds, it is remembered
-- ARGV[6]  PUBLISH or SPUBLISH: how the waiters listen
--
-- Returns 1, or 0 if there was none.
local before = last_end(ARGV[2])
if redis.call('del', KEYS[1]) == 0 then
    return answer(0)
end
ended(ARGV[2], before)
redis.pcall(ARGV[6], ARGV[1], '0')
return answer(1)
