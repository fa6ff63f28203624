-- Gives a semaphore its permits unless its key exists. If there are permits, notifies the waiters.
--
-- KEYS[1]  the semaphore: a number, the free permits
-- ARGV[1]  its channel; not a key, because a user's key patterns need not cover it
-- ARGV[2]  common part of the names of the semaphore's other keys, all in the semaphore's slot
-- ARGV[3]  request slot, a part of the name of the key that stores the reply
-- ARGV[4]  serial number of the request; later requests in the slot have higher numbers
-- ARGV[5]  time in milliseconds for which the server stores the reply
-- ARGV[6]  PUBLISH or SPUBLISH: the waiters' way to listen
-- ARGV[7]  number of permits
--
-- Returns 1. Returns 0 and changes nothing if the key exists.
if not redis.call('set', KEYS[1], ARGV[7], 'nx') then
    return answer(0)
end
if tonumber(ARGV[7]) > 0 then
    redis.pcall(ARGV[6], ARGV[1], ARGV[7])
end
return answer(1)
