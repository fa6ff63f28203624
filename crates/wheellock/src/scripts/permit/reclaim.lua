-- Writes many held permits into a server that has taken over and may not know them.
--
-- KEYS     for each permit: its semaphore, a number, the free permits
-- ARGV[1]  the fleet
-- ARGV[2]  the server's run id and replication id
-- ARGV     for each permit: lease in milliseconds; the permit's id; hold count, which is 1; end of the hold by the
--          server's clock, in milliseconds; common part of the names of the semaphore's other keys
--
-- Returns the server's time (seconds, microseconds). For each permit then follows 1 (it has the lease at least), 0
-- (nothing was changed), or -2 (nothing was changed, because the server does not know the semaphore).
--
-- Until the grace is over, a permit is written even if none is free. The server may have old copies of permits that were
-- released, and each of them ends with its lease. Meanwhile the number of free permits is negative, so no permit is
-- granted. Afterwards only a free permit is taken. A reclaim that arrives after the end of its hold has no effect. A
-- semaphore that the server does not know gets no permits, because its total is unknown.
local reply = redis.call('time')
reply[1], reply[2] = tonumber(reply[1]), tonumber(reply[2])
local now = reply[1] * 1000 + math.floor(reply[2] / 1000)
local over = is_grace_over(ARGV[1], ARGV[2])
for i, semaphore in ipairs(KEYS) do
    local lease, permit, _, ends, tag = unpack(ARGV, 5 * i - 2, 5 * i + 2)
    local leases = tag .. ':timeout'
    local free, written = redis.pcall('get', semaphore), redis.pcall('zscore', leases, permit)
    for _, found in ipairs({ free, written }) do
        if type(found) == 'table' and not string.find(found.err, 'WRONGTYPE', 1, true) then
            return found
        end
    end
    if not written then
        -- While a cluster moves the slot, a missing key may still be on the other node. The importing node then refuses
        -- this command for both keys, and the script ends.
        redis.call('exists', semaphore, leases)
    end
    reply[i + 2] = 0
    local is_known = type(free) == 'string' and string.find(free, '^%-?%d+$') and type(written) ~= 'table'
    if over ~= nil and not is_known then
        reply[i + 2] = -2
    elseif over ~= nil and now < tonumber(ends) then
        -- This ZREM removes nothing. A server without memory refuses a script's first write if that write may need
        -- memory, but no later write.
        redis.call('zrem', leases, '')
        local until_then = now + tonumber(lease)
        if written then
            redis.call('zadd', leases, math.max(until_then, tonumber(written)), permit)
            reply[i + 2] = 1
        elseif not over or free + redis.call('zcount', leases, '-inf', now) > 0 then
            redis.call('zadd', leases, until_then, permit)
            redis.call('decrby', semaphore, 1)
            -- The leases must not outlive a semaphore that has a TTL.
            local left = redis.call('pttl', semaphore)
            if left > 0 then
                redis.call('pexpire', leases, left)
            end
            reply[i + 2] = 1
        end
    end
end
return reply
