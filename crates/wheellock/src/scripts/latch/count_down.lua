-- Counts a latch down; the last time it goes, and those who wait are told.
--
-- KEYS[1]  the latch: a number, how often it is to be counted down
-- ARGV[1]  its channel; not a key, because a user's key patterns need not cover it
-- ARGV[2]  what the keys that belong to it have in common, in its slot
-- ARGV[3]  where the request is remembered
-- ARGV[4]  the number of the request: higher than those that were remembered there before
-- ARGV[5]  for how long, in milliseconds, it is remembered
-- ARGV[6]  PUBLISH or SPUBLISH: how the waiters listen
--
-- Returns how often it is still to be counted down; the error WRONGTYPE, with nothing changed, if there is no number under the
-- name.
if not number then
    return answer(0)
end
if number > 1 then
    return answer(redis.call('decr', KEYS[1]))
end
local before = last_end(ARGV[2])
redis.call('del', KEYS[1])
ended(ARGV[2], before)
redis.pcall(ARGV[6], ARGV[1], '0')
return answer(0)
