-- The rest of `release.lua`: a hold of several, or of one reader of several.
count, held = tonumber(count), tonumber(held)
if not held then
    return nil
end
-- How much longer the lock lives on its own account is told by what is left of the longest lease given back here.
local longest, leases, missing = 0, {}, nil
for hold = count + 1, math.min(held, count + 1000) do
    local lease = tag .. ':' .. holder .. ':rwlock_timeout:' .. hold
    local own = redis.call('pttl', lease)
    if own == -2 then
        missing = lease
    end
    leases[#leases + 1], longest = lease, math.max(longest, own)
end
if missing then
    -- Where a cluster's slot moves, the node that it goes to refuses to say this of both while one may not have come.
    redis.call('exists', lock, missing)
end
local lived, left = redis.call('pttl', lock), nil
-- A writer's lease is its own; and where the lock outlives what was given back, another reader's lease is why. Up to Redis 7.0
-- time goes on inside a script: of two leases set by one call the second may end 1 or 2 ms later.
if mode == 'read' and lived >= 0 and longest + 2 >= lived or last then
    -- Before anything is changed: it may be refused.
    left = longest_read_lease(lock, tag, lived, {[holder] = count})
end
if #leases > 0 then
    redis.call('del', unpack(leases))
end
if left and left <= 0 and (count == 0 or mode == 'read') then
    -- Readers whose leases have ended hold nothing.
    redis.call('del', lock)
    -- A user without the channel frees locks all the same; waiters then find out by asking.
    redis.pcall(ARGV[4], ARGV[1], '0')
    return 1
end
if count == 0 then
    redis.call('hdel', lock, holder)
elseif count ~= held then
    redis.call('hset', lock, holder, count)
end
if left and left > 0 and left ~= lived then
    redis.call('pexpire', lock, left)
end
return count > 0 and 0 or 1
