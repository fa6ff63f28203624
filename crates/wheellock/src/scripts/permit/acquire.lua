-- Acquires permits of a semaphore for the time of a lease, all or none.
--
-- KEYS[1]  the semaphore: a number, the free permits
-- ARGV[1]  lease in milliseconds
-- ARGV[2]  id of the first permit, a number of 16 bytes; the other ids are the next numbers
-- ARGV[3]  number of permits
-- ARGV[4]  common part of the names of the semaphore's other keys, all in the semaphore's slot
-- ARGV[5]  its channel; not a key, because a user's key patterns need not cover it
-- ARGV[6]  PUBLISH or SPUBLISH: the waiters' way to listen
--
-- Returns 1 (acquired) or 2 (acquired before). The number of free permits after this call follows. The second case is a
-- call that the caller repeats because the reply was lost. If too few permits are free, returns the milliseconds until
-- the first lease ends, or -1 if no lease ends. If the key has other data, the script changes nothing and returns the
-- error WRONGTYPE.
local semaphore, lease, count, leases = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[3]), ARGV[4] .. ':timeout'
local free, ids = number or 0, { ARGV[2] }
for i = 2, count do
    local bytes = { string.byte(ids[i - 1], 1, -1) }
    for at = #bytes, 1, -1 do
        bytes[at] = (bytes[at] + 1) % 256
        if bytes[at] > 0 then
            break
        end
    end
    ids[i] = string.char(unpack(bytes))
end

-- Returns the number of these permits that have a lease.
local function taken()
    local taken = 0
    for i = 1, count do
        taken = taken + (redis.call('zscore', leases, ids[i]) and 1 or 0)
    end
    return taken
end

-- Sets the leases of these permits.
local function take()
    for i = 1, count do
        redis.call('zadd', leases, now + lease, ids[i])
    end
end

-- The permit whose lease ends first.
local first = redis.call('zrange', leases, '0', '0', 'withscores')
local before = 0
if not first[1] then
    -- While a cluster moves the slot, a missing key may still be on the other node. The importing node then refuses
    -- this command for both keys, and the script ends.
    redis.call('exists', semaphore, leases)
else
    -- This check comes before the reaping. A permit whose lease has ended still belongs to the caller if it is not
    -- reaped yet.
    before = taken()
    if before == count then
        -- The leases begin anew, because the caller counts its lease from the request that gets this reply.
        take()
        return { 2, math.max(free, 0) }
    end
end
local ended = 0
if first[1] and tonumber(first[2]) <= now then
    ended = reap(semaphore, leases, now)
end
free = free + ended
-- Either too few permits are free, or some of these permits were released or reaped since their acquire. In the second
-- case this call arrived late, or the remaining leases end soon. The script must not acquire the remaining permits a
-- second time.
if free < count or before > 0 and taken() > 0 then
    if ended > 0 then
        first = redis.call('zrange', leases, '0', '0', 'withscores')
        if free > 0 then
            redis.pcall(ARGV[6], ARGV[5], free)
        end
    end
    local ends = tonumber(first[2])
    -- Redisson gives this end to permits without an end.
    if not ends or ends >= 922337203685477 then
        return -1
    end
    -- More leases may have ended than the script reaps at once.
    return math.max(ends - now, 0)
end
take()
local taken_off = redis.pcall('decrby', semaphore, count)
if type(taken_off) == 'table' then
    for i = 1, count do
        redis.call('zrem', leases, ids[i])
    end
    return taken_off
end
-- The leases must not outlive a semaphore that has a TTL.
local left = redis.call('pttl', semaphore)
if left > 0 then
    redis.call('pexpire', leases, left)
end
if ended > 0 and free > count then
    redis.pcall(ARGV[6], ARGV[5], free - count)
end
return { 1, free - count }
