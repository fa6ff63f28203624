-- Replaces the holder of a lock of a single instance by a spent owner, as `retire.lua` does.
--
-- KEYS[1]  the lock: a string, the holder's token
-- ARGV[1]  its channel; not a key, because a user's key patterns need not cover it
-- ARGV[2]  token
-- ARGV[3]  token of the spent owner
-- ARGV[4]  remaining time in milliseconds
-- ARGV[5]  PUBLISH or SPUBLISH: the waiters' way to listen
-- ARGV[6]  common part of the names of the lock's other keys, which this script does not need
--
-- Returns 1 plus the number of receivers. A refused message counts as a message without receivers. Returns nil if this
-- token does not hold the lock. A repeated call returns 1.
local token = redis.pcall('get', KEYS[1])
if type(token) == 'table' and not string.find(token.err, 'WRONGTYPE', 1, true) then
    return token
end
if token == ARGV[3] then
    return 1
end
if token ~= ARGV[2] then
    return nil
end
-- PEXPIRE comes first, because a server without memory refuses SET as a script's first write.
redis.call('pexpire', KEYS[1], ARGV[4])
redis.call('set', KEYS[1], ARGV[3], 'px', ARGV[4])
-- A user without permission for the channel still keeps the lock. The waiters then learn the time when they poll.
local heard = redis.pcall(ARGV[5], ARGV[1], '0')
return type(heard) == 'number' and 1 + heard or 1
