-- Acquires and releases several locks of a single instance for independent callers, each as `acquire.lua` or
-- `release.lua` does.
--
-- KEYS     the lock of each call
-- ARGV     for each call: 1 and the arguments of acquire.lua, or 2 and the arguments of release.lua
--
-- Returns for each call the reply of that script, its error included. The error of one call does not stop the others.
local try, status = redis.pcall, redis.status_reply

-- Returns the reply of `acquire.lua`, with false for nil.
local function acquire(lock, lease, holder)
    local set = try('set', lock, holder, 'nx', 'px', lease)
    if set then
        return set.err and set or false
    end
    local token = try('get', lock)
    if type(token) == 'table' then
        return token
    end
    if token == holder then
        local bounded = try('pexpire', lock, lease)
        return type(bounded) == 'number' and status('AGAIN') or bounded
    end
    local left = try('pttl', lock)
    -- The tokens of this library are a UUID and a number. Their holders announce the release.
    if type(left) ~= 'number' or #token > 37 and string.find(token, '^%x+%-%x+%-%x+%-%x+%-%x+:%d+$') then
        return left
    end
    return {left}
end

-- Returns the reply of `release.lua`, with false for nil.
local function release(lock, channel, holder, publish)
    local token = try('get', lock)
    if not token then
        -- This HDEL removes nothing. A primary that became a replica refuses it.
        local proof = try('hdel', lock, '')
        return proof ~= 0 and proof
    end
    if token ~= holder then
        return type(token) == 'table' and not string.find(token.err, 'WRONGTYPE', 1, true) and token
    end
    local gone = try('del', lock)
    if type(gone) ~= 'number' then
        return gone
    end
    -- A user without permission for the channel still frees locks. The waiters then notice the release when they poll.
    local heard = try(publish, channel, '0')
    return type(heard) == 'number' and 1 + heard or 1
end

local reply, at = {}, 1
for i = 1, #KEYS do
    if ARGV[at] == '1' then
        reply[i] = acquire(KEYS[i], ARGV[at + 1], ARGV[at + 2])
        at = at + 4
    else
        reply[i] = release(KEYS[i], ARGV[at + 1], ARGV[at + 2], ARGV[at + 4])
        at = at + 5
    end
end
return reply
