-- Writes many held locks into a server that has taken over and may not know them.
--
-- KEYS     the locks: a hash each, holder -> hold count
-- ARGV[1]  the fleet
-- ARGV[2]  the server's run id and replication id
-- ARGV     for each lock: lease in milliseconds; holder; hold count; end of the hold by the server's clock, in
--          milliseconds. For fenced locks also: common part of the names of the lock's other keys; the hold's token
--
-- Returns the server's time (seconds, microseconds). For each lock then follows 1 (the holder holds it for the lease at
-- least) or 0 (nothing was changed).
--
-- Until the grace is over, any other holder of the lock is an old copy: there are no two valid holds. So the holder
-- takes its place. Afterwards the lock may have been granted to another owner, and the holder takes only a free lock. A
-- reclaim that arrives after the end of its hold has no effect.
local reply = redis.call('time')
reply[1], reply[2] = tonumber(reply[1]), tonumber(reply[2])
local now = reply[1] * 1000 + math.floor(reply[2] / 1000)
local over = is_grace_over(ARGV[1], ARGV[2])
local size = (#ARGV - 2) / #KEYS

-- Raises the counter of a lock's tokens to this token at least. So the next token is greater, even if this server has
-- lost the counter and its clock is behind. Returns an error, or nil.
local function raise_counter(lock, tag, token)
    local counter = 'redisson_lock_token:' .. tag
    local stored = redis.pcall('get', counter)
    if type(stored) == 'table' then
        return not string.find(stored.err, 'WRONGTYPE', 1, true) and stored or nil
    end
    if not stored then
        -- While a cluster moves the slot, a missing key may still be on the other node. The importing node then refuses
        -- this command for both keys, and the script ends.
        redis.call('exists', lock, counter)
    end
    local known = tonumber(stored or '0')
    if known and known < tonumber(token) then
        redis.call('set', counter, token)
    end
end

for i, lock in ipairs(KEYS) do
    local lease, holder, count, ends, tag, token = unpack(ARGV, size * (i - 1) + 3, size * i + 2)
    ends = tonumber(ends)
    local held = redis.pcall('hget', lock, holder)
    if type(held) == 'table' and not string.find(held.err, 'WRONGTYPE', 1, true) then
        return held
    end
    local exists = redis.call('exists', lock) == 1
    reply[i + 2] = 0
    if over ~= nil and now < ends and type(held) ~= 'table' and (held or not exists or not over) then
        -- This HDEL removes nothing. A server without memory refuses a script's first write if that write may need
        -- memory, but no later write.
        redis.call('hdel', lock, '')
        local refused = token and raise_counter(lock, tag, token)
        if refused then
            return refused
        end
        if exists and not held then
            redis.call('del', lock)
        end
        redis.call('hset', lock, holder, count)
        if redis.call('pttl', lock) < tonumber(lease) then
            redis.call('pexpire', lock, lease)
        end
        reply[i + 2] = 1
    end
end
return reply
