-- Acquires and releases several locks for independent callers, each as `acquire.lua` or `release.lua` does.
--
-- KEYS     the lock of each call
-- ARGV     for each call: 1 and the arguments of acquire.lua, or 2 and the arguments of release.lua
--
-- Returns for each call the reply of that script, its error included. The error of one call does not stop the others.
local try, status = redis.pcall, redis.status_reply

-- Returns the reply of `acquire.lua`, with false for nil.
local function acquire(lock, lease, holder, count)
    local found = try('exists', lock)
    if found == 0 then
        local set = try('hset', lock, holder, '1')
        if set ~= 1 then
            return set
        end
        local bounded = try('pexpire', lock, lease)
        return bounded ~= 1 and bounded
    end
    if found ~= 1 then
        return found
    end
    local held = holders_of(lock)
    if held.err then
        return held
    end
    if not held[holder] then
        return try('pttl', lock)
    end
    local set = try('hset', lock, holder, count)
    if set ~= 0 then
        return set
    end
    -- A nested hold with a shorter lease must not shorten the lease of the outer hold.
    local left = try('pttl', lock)
    if type(left) ~= 'number' then
        return left
    end
    if left < tonumber(lease) then
        local bounded = try('pexpire', lock, lease)
        if bounded ~= 1 then
            return bounded
        end
    end
    return status('AGAIN')
end

-- Returns the reply of `release.lua`, with false for nil.
local function release(lock, channel, holder, count, publish)
    local found
    if count == '0' then
        found = try('hlen', lock)
    else
        found = try('hexists', lock, holder)
    end
    if type(found) ~= 'number' then
        return not string.find(found.err, 'WRONGTYPE', 1, true) and found
    end
    if count ~= '0' or found == 0 then
        -- This HDEL removes nothing. A primary that became a replica refuses it. A server without memory refuses a
        -- script's first write if that write may need memory, but no later write.
        local proof = try('hdel', lock, '')
        if found == 0 or proof ~= 0 then
            return proof ~= 0 and proof
        end
        local set = try('hset', lock, holder, count)
        return set == 0 and 0 or set
    end
    local gone = try('hdel', lock, holder)
    if gone ~= 1 then
        return gone ~= 0 and gone
    end
    -- A lock of another kind may have holders in the same hash. Then the lock is not free yet.
    if found == 1 then
        -- A user without permission for the channel still frees locks. The waiters then notice the release when they
        -- poll.
        local heard = try(publish, channel, '0')
        return type(heard) == 'number' and 1 + heard or -1
    end
    return 1
end

local reply, at = {}, 1
for i = 1, #KEYS do
    if ARGV[at] == '1' then
        reply[i] = acquire(KEYS[i], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3])
        at = at + 4
    else
        reply[i] = release(KEYS[i], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4])
        at = at + 5
    end
end
return reply
