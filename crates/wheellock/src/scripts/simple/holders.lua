-- Says who holds a lock of a single instance. Changes nothing.
--
-- KEYS[1]  the lock: a string, the holder's token
-- ARGV[1]  1: more cannot be said
--
-- Returns how many there are, 0 or 1, then of this one: token, 1, and the remaining milliseconds of its lease, -1 if that has no
-- end; the error WRONGTYPE if other data is under the name.
local token = redis.pcall('get', KEYS[1])
if type(token) == 'table' then
    return token
end
if not token then
    return {0}
end
return {1, token, 1, redis.call('pttl', KEYS[1])}
