-- Sets a latch unless its key exists, and notifies the listeners.
--
-- KEYS[1]  the latch: a number, the remaining count
-- ARGV[1]  its channel; not a key, because a user's key patterns need not cover it
-- ARGV[2]  common part of the names of the latch's other keys, all in the latch's slot
-- ARGV[3]  request slot, a part of the name of the key that stores the reply
-- ARGV[4]  serial number of the request; later requests in the slot have higher numbers
-- ARGV[5]  time in milliseconds for which the server stores the reply
-- ARGV[6]  PUBLISH or SPUBLISH: the waiters' way to listen
-- ARGV[7]  the count
--
-- Returns 1. Returns 0 and changes nothing if the key exists.
if not redis.call('set', KEYS[1], ARGV[7], 'nx') then
    return answer(0)
end
redis.pcall(ARGV[6], ARGV[1], '1')
return answer(1)
