-- Takes a lock of a single instance, or says how long the present holder's lease still runs.
--
-- KEYS[1]  the lock: a string, the holder's token
-- ARGV[1]  lease in milliseconds
-- ARGV[2]  token
-- ARGV[3]  1: it is not reentrant
--
-- Returns nil (the lock was free), AGAIN (this token had taken it, and this call is a repetition) or the present lease's
-- remaining milliseconds, in a list of one if the holder is one who tells nobody of its release; the error WRONGTYPE if other
-- data is under the name. Nothing was changed then.
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
-- A uuid and a number: a process that uses this library.
if #token > 37 and string.find(token, '^%x+%-%x+%-%x+%-%x+%-%x+:%d+$') then
    return left
end
return {left}
