-- Takes permits of a semaphore for the time of a lease, all or none.
--
-- KEYS[1]  the semaphore: a number, the permits that are free
-- ARGV[1]  lease in milliseconds
-- ARGV[2]  the first permit's id, a number of 16 bytes; those of the others follow it
-- ARGV[3]  how many
-- ARGV[4]  what the keys that belong to the semaphore have in common, in its slot
-- ARGV[5]  its channel; not a key, because a user's key patterns need not cover it
-- ARGV[6]  PUBLISH or SPUBLISH: how the waiters listen
--
-- Returns { 1, permits that are free then }, { 2, .. } (these permits were taken already: the call was repeated because its reply
-- was lost) or, if too few are free, in how many milliseconds the first lease ends; -1 if none ever does. The error WRONGTYPE, with
-- nothing changed, if there is no number under the name.
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

local function taken()
    local taken = 0
    for i = 1, count do
        taken = taken + (redis.call('zscore', leases, ids[i]) and 1 or 0)
    end
    return taken
end

local function take()
    for i = 1, count do
        redis.call('zadd', leases, now + lease, ids[i])
    end
end

-- The one whose lease ends first.
local first = redis.call('zrange', leases, '0', '0', 'withscores')
local before = 0
if not first[1] then
    -- Where a cluster's slot moves, the node that it goes to refuses to say this of both while one may not have come.
    redis.call('exists', semaphore, leases)
else
    -- Before anything is reaped: what nobody has taken since its lease ended is still the caller's.
    before = taken()
    if before == count then
        -- The caller counts its lease from the question that is answered.
        take()
        return { 2, math.max(free, 0) }
    end
end
local ended = 0
if first[1] and tonumber(first[2]) <= now then
    ended = reap(semaphore, leases, now)
end
free = free + ended
-- A part of these was given back since, or reaped: this call came late, or the rest ends soon. What is there is nobody's to take twice.
if free < count or before > 0 and taken() > 0 then
    if ended > 0 then
        first = redis.call('zrange', leases, '0', '0', 'withscores')
        if free > 0 then
            redis.pcall(ARGV[6], ARGV[5], free)
        end
    end
    local ends = tonumber(first[2])
    -- Redisson's permits without an end have this one.
    if not ends or ends >= 922337203685477 then
        return -1
    end
    -- More may have ended than are given back at once.
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
local left = redis.call('pttl', semaphore)
if left > 0 then
    redis.call('pexpire', leases, left)
end
if ended > 0 and free > count then
    redis.pcall(ARGV[6], ARGV[5], free - count)
end
return { 1, free - count }
