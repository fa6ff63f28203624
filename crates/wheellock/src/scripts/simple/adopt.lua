-- Gives a lock of a single instance to a new holder in place of the owner that a ticket names, as `adopt.lua` does.
--
-- KEYS[1]  the lock: a string, the holder's token
-- ARGV[1]  lease in milliseconds
-- ARGV[2]  token of the new holder
-- ARGV[3]  token that the ticket names
--
-- Returns nil if the new holder has the lock now, or AGAIN if it had the lock already. Returns the remaining milliseconds
-- of the present lease, or -2, if that token does not hold the lock.
local token = redis.call('get', KEYS[1])
if token ~= ARGV[2] and token ~= ARGV[3] then
    return redis.call('pttl', KEYS[1])
end
redis.call('pexpire', KEYS[1], ARGV[1])
redis.call('set', KEYS[1], ARGV[2], 'px', ARGV[1])
return token == ARGV[2] and redis.status_reply('AGAIN') or nil
