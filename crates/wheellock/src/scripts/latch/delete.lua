-- Deletes a latch and notifies the waiters, because their wait is over.
--
-- KEYS[1]  the latch: a number, the remaining count
-- ARGV[1]  its channel; not a key, because a user's key patterns need not cover it
-- ARGV[2]  common part of the names of the latch's other keys, all in the latch's slot
-- ARGV[3]  request slot, a part of the name of the key that stores the reply
-- ARGV[4]  serial number of the request; later requests in the slot have higher numbers
-- ARGV[5]  time in milliseconds for which the server stores the reply
-- ARGV[6]  PUBLISH or SPUBLISH: the waiters' way to listen
--
-- Returns 1, or 0 if there was no latch.
local before = last_end(ARGV[2])
if redis.call('del', KEYS[1]) == 0 then
    return answer(0)
end
ended(ARGV[2], before)
redis.pcall(ARGV[6], ARGV[1], '0')
return answer(1)
