-- Extends the leases of many permits at once, or reads their remaining time.
--
-- KEYS     for each permit: the ends of its semaphore's leases
-- ARGV     for each permit: lease in milliseconds, 0 to leave it as it is; the permit's id; the semaphore
--
-- Returns the server's time (seconds, microseconds). For each permit then follows 0 (its lease has ended) or 1
-- (extended). The script never acquires a permit anew. If the lease stays as it is, its remaining milliseconds replace
-- the 1.
--
-- Other data under the name of one permit's leases must not stop the renewal of the others. So such a permit counts as
-- ended.
--
-- The script reads all keys at its end, so that the server remembers them. See `renew.lua`.
local reply = redis.call('time')
reply[1], reply[2] = tonumber(reply[1]), tonumber(reply[2])
local now = reply[1] * 1000 + math.floor(reply[2] / 1000)
for i = 1, #KEYS do
    local lease, permit, leases = tonumber(ARGV[3 * i - 2]), ARGV[3 * i - 1], KEYS[i]
    local ends = redis.pcall('zscore', leases, permit)
    if type(ends) == 'table' and not string.find(ends.err, 'WRONGTYPE', 1, true) then
        return ends
    end
    if not ends then
        -- While a cluster moves the slot, a missing key may still be on the other node. The importing node then refuses
        -- this command for both keys, and the script ends.
        redis.call('exists', ARGV[3 * i], leases)
    end
    if type(ends) ~= 'table' then
        -- This ZREM removes nothing. A primary that became a replica refuses it. A server without memory refuses a
        -- script's first write if that write may need memory, but no later write.
        redis.call('zrem', leases, '')
    end
    local left = type(ends) == 'string' and tonumber(ends) - now or 0
    if left <= 0 then
        reply[i + 2] = 0
    elseif lease == 0 then
        reply[i + 2] = left
    else
        -- A process that knows the permit's id may have extended the lease further (Redisson's `updateLeaseTime`).
        if left < lease then
            redis.call('zadd', leases, now + lease, permit)
        end
        reply[i + 2] = 1
    end
end
redis.pcall('exists', unpack(KEYS))
return reply
