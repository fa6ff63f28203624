-- Returns the holder of a lock of a single instance. Changes nothing.
--
-- KEYS[1]  the lock: a string, the holder's token
-- ARGV[1]  1, the maximum number of holders
--
-- Returns the number of holders, 0 or 1. For one holder then follow the token, 1 and the remaining milliseconds of its
-- lease. These are -1 if the lease has no end. If the key has other data, the script returns the error WRONGTYPE.
local token = redis.pcall('get', KEYS[1])
if type(token) == 'table' then
    return token
end
if not token then
    return {0}
end
return {1, token, 1, redis.call('pttl', KEYS[1])}
