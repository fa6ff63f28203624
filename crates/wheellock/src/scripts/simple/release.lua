-- Frees a lock of a single instance, if it is this token's, and tells the waiters.
--
-- KEYS[1]  the lock
-- ARGV[1]  its channel; not a key, because a user's key patterns need not cover it
-- ARGV[2]  token
-- ARGV[3]  0: the hold count once this call has succeeded
-- ARGV[4]  PUBLISH or SPUBLISH: how the waiters listen
--
-- Returns 1 and how many heard of it (given back) or nil (it is not this token's; nothing was changed).
local token = redis.pcall('get', KEYS[1])
if type(token) == 'table' and not string.find(token.err, 'WRONGTYPE', 1, true) then
    return token
end
if token ~= ARGV[2] then
    return nil
end
redis.call('del', KEYS[1])
-- A user without the channel frees locks all the same; waiters then find out by asking.
local heard = redis.pcall(ARGV[4], ARGV[1], '0')
return type(heard) == 'number' and 1 + heard or 1
