-- The rest of `release.lua`. It releases some of several holds, or a reader's hold beside those of other readers.
count, held = tonumber(count), tonumber(held)
if not held then
    return nil
end
-- The longest of the released leases shows whether the lock's own lease comes from it.
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
    -- While a cluster moves the slot, a missing key may still be on the other node. The importing node then refuses
    -- this command for both keys, and the script ends.
    redis.call('exists', lock, missing)
end
local lived, left = redis.call('pttl', lock), nil
-- A writer's lease does not depend on readers. If the lock outlives the released leases, another reader's lease is the
-- reason. Up to Redis 7.0, time goes on inside a script. If one call sets two leases, the second may end 1 or 2 ms
-- later.
if mode == 'read' and lived >= 0 and longest + 2 >= lived or last then
    -- This step comes before all changes, because a node may refuse its commands.
    left = longest_read_lease(lock, tag, lived, {[holder] = count})
end
if #leases > 0 then
    redis.call('del', unpack(leases))
end
if left and left <= 0 and (count == 0 or mode == 'read') then
    -- Readers whose leases have ended do not hold the lock.
    redis.call('del', lock)
    -- A user without permission for the channel still frees locks. The waiters then notice the release when they poll.
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
