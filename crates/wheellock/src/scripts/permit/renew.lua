-- Extends the leases of many permits at once, or looks how long they still run.
--
-- KEYS     their semaphores
-- ARGV     for each: lease in milliseconds, 0 to leave it as it is; the permit's id; what the keys that belong to the semaphore
--          have in common
--
-- Returns the server's clock (seconds, microseconds), then for each permit 0 (its lease has ended; it is never taken anew), or
-- else 1 (extended); of a lease that was left as it is the remaining milliseconds instead.
--
-- Data of another type under one's name is an error that must not keep the others from being renewed.
local reply = redis.call('time')
reply[1], reply[2] = tonumber(reply[1]), tonumber(reply[2])
local now = reply[1] * 1000 + math.floor(reply[2] / 1000)
local writes = false
for i = 1, #KEYS do
    local lease, permit, leases = tonumber(ARGV[3 * i - 2]), ARGV[3 * i - 1], ARGV[3 * i] .. ':timeout'
    local ends = redis.pcall('zscore', leases, permit)
    if type(ends) == 'table' and not string.find(ends.err, 'WRONGTYPE', 1, true) then
        return ends
    end
    if not ends then
        -- Where a cluster's slot moves, the node that it goes to refuses to say this of both while one may not have come.
        redis.call('exists', KEYS[i], leases)
    end
    local left = type(ends) == 'string' and tonumber(ends) - now or 0
    if left <= 0 then
        reply[i + 2] = 0
    elseif lease == 0 then
        reply[i + 2] = left
    else
        -- Who has a permit's id may have made its lease longer (Redisson's `updateLeaseTime`).
        if left < lease then
            if not writes then
                -- Removes nothing: a server without memory refuses a script's first write if it could need some, and no later one.
                redis.call('zrem', leases, '')
                writes = true
            end
            redis.call('zadd', leases, now + lease, permit)
        end
        reply[i + 2] = 1
    end
end
return reply
