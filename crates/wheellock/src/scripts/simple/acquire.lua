-- Acquires a lock of a single instance, or returns the remaining milliseconds of the present lease.
--
-- KEYS[1]  the lock: a string, the holder's token
-- ARGV[1]  lease in milliseconds
-- ARGV[2]  token
-- ARGV[3]  1, because this lock is not reentrant
--
-- Returns nil (the lock was free), AGAIN (a repetition: this token had it already) or the remaining milliseconds. These
-- are -1 if the lease has no end. They are in a list of one if the holder does not announce its release. If the key has
-- other data, the script changes nothing and returns the error WRONGTYPE.
if redis.call('set', KEYS[1], ARGV[2], 'nx', 'px', ARGV[1]) then
    return nil
end
local token = redis.pcall('get', KEYS[1])
if type(token) == 'table' then
    return token
end
if token == ARGV[2] then
    redis.call('pexpire', KEYS[1], ARGV[1])
    return redis.status_reply('AGAIN')
end
local left = redis.call('pttl', KEYS[1])
-- The tokens of this library are a UUID and a number. Their holders announce the release.
if #token > 37 and string.find(token, '^%x+%-%x+%-%x+%-%x+%-%x+:%d+$') then
    return left
end
return {left}
