-- Stores and publishes a leader's announcement, which ends with the lock's lease. `once.lua` precedes this script.
--
-- KEYS[1]  the lock that elects the leader: a hash, holder -> hold count
-- ARGV[1]  its channel, which this script does not need
-- ARGV[2]  common part of the names of the lock's other keys, all in the lock's slot
-- ARGV[3]  request slot, a part of the name of the key that stores the reply
-- ARGV[4]  serial number of the request; later requests in the slot have higher numbers
-- ARGV[5]  time in milliseconds for which the server stores the reply
-- ARGV[6]  PUBLISH or SPUBLISH: the observers' way to listen
-- ARGV[7]  holder, token and text, with spaces between them
--
-- Returns 1, or 0 if this holder does not hold the lock. If the key has other data, the script changes nothing and
-- returns the error WRONGTYPE.
local held = redis.pcall('hexists', KEYS[1], string.match(ARGV[7], '^%S+'))
if type(held) ~= 'number' then
    return held
end
if held == 0 then
    return answer(0)
end
local leader = ARGV[2] .. ':wheellock_leader'
-- While a cluster moves the slot, a missing key may still be on the other node. The importing node then refuses this
-- command for both keys, and the script ends.
redis.call('exists', KEYS[1], leader)
redis.call('set', leader, ARGV[7])
-- The announcement ends with the lease of the lock. The renewals extend both.
local left = redis.call('pttl', KEYS[1])
if left >= 0 then
    redis.call('pexpire', leader, left)
end
-- A user without permission for the channel still leads. The observers then notice the announcement when they poll.
redis.pcall(ARGV[6], 'wheellock_election:' .. ARGV[2], '1')
return answer(1)
