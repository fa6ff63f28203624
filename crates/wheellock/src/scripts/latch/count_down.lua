-- Counts a latch down by one. The last count deletes the latch and notifies the waiters.
--
-- KEYS[1]  the latch: a number, the remaining count
-- ARGV[1]  its channel; not a key, because a user's key patterns need not cover it
-- ARGV[2]  common part of the names of the latch's other keys, all in the latch's slot
-- ARGV[3]  request slot, a part of the name of the key that stores the reply
-- ARGV[4]  serial number of the request; later requests in the slot have higher numbers
-- ARGV[5]  time in milliseconds for which the server stores the reply
-- ARGV[6]  PUBLISH or SPUBLISH: the waiters' way to listen
--
-- Returns the remaining count. If the key has other data, the script changes nothing and returns the error WRONGTYPE.
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
