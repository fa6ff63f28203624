-- Frees a lock of a single instance if this token holds it, and notifies the waiters.
--
-- KEYS[1]  the lock
-- ARGV[1]  its channel; not a key, because a user's key patterns need not cover it
-- ARGV[2]  token
-- ARGV[3]  0, the hold count after this call
-- ARGV[4]  PUBLISH or SPUBLISH: the waiters' way to listen
--
-- Returns 1 plus the number of receivers (released). A refused message counts as a message without receivers. Returns
-- nil if this token does not hold the lock. In that case the script has changed nothing.
local token = redis.pcall('get', KEYS[1])
if type(token) == 'table' and not string.find(token.err, 'WRONGTYPE', 1, true) then
    return token
end
if token ~= ARGV[2] then
    if not token then
        -- This HDEL removes nothing. A primary that became a replica refuses it.
        redis.call('hdel', KEYS[1], '')
    end
    return nil
end
redis.call('del', KEYS[1])
-- A user without permission for the channel still frees locks. The waiters then notice the release when they poll.
local heard = redis.pcall(ARGV[4], ARGV[1], '0')
return type(heard) == 'number' and 1 + heard or 1
