-- Takes one permit of a semaphore for the time of a lease.
--
-- KEYS[1]  the semaphore: a number, the permits that are free
-- ARGV[1]  lease in milliseconds
-- ARGV[2]  the permit's id
-- ARGV[3]  1
-- ARGV[4]  what the keys that belong to the semaphore have in common, in its slot
-- ARGV[5]  its channel; not a key, because a user's key patterns need not cover it
-- ARGV[6]  PUBLISH or SPUBLISH: how the waiters listen
--
-- Returns { 1, permits that are free then }, { 2, .. } (this permit was taken already: the call was repeated because its reply
-- was lost) or, if none is free, in how many milliseconds the first lease ends; -1 if none ever does. The error WRONGTYPE, with
-- nothing changed, if there is no number under the name.
local semaphore, lease, permit, leases = KEYS[1], tonumber(ARGV[1]), ARGV[2], ARGV[4] .. ':timeout'
local free = number or 0
-- The one whose lease ends first.
local first = redis.call('zrange', leases, '0', '0', 'withscores')
if not first[1] then
    -- Where a cluster's slot moves, the node that it goes to refuses to say this of both while one may not have come.
    redis.call('exists', semaphore, leases)
-- Before anything is reaped: what nobody has taken since its lease ended is still the caller's.
elseif redis.call('zscore', leases, permit) then
    -- The caller counts its lease from the question that is answered.
    redis.call('zadd', leases, now + lease, permit)
    return { 2, math.max(free, 0) }
end
local ended = 0
if first[1] and tonumber(first[2]) <= now then
    ended = reap(semaphore, leases, now)
end
free = free + ended
if free < 1 then
    if ended > 0 then
        first = redis.call('zrange', leases, '0', '0', 'withscores')
    end
    local ends = tonumber(first[2])
    -- Redisson's permits without an end have this one.
    if not ends or ends >= 922337203685477 then
        return -1
    end
    -- More may have ended than are given back at once.
    return math.max(ends - now, 0)
end
redis.call('zadd', leases, now + lease, permit)
local taken = redis.pcall('decrby', semaphore, 1)
if type(taken) == 'table' then
    redis.call('zrem', leases, permit)
    return taken
end
local left = redis.call('pttl', semaphore)
if left > 0 then
    redis.call('pexpire', leases, left)
end
if ended > 0 and free > 1 then
    redis.pcall(ARGV[6], ARGV[5], free - 1)
end
return { 1, free - 1 }
