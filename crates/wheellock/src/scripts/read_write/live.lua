-- For how long the longest of the readers' leases still runs, in milliseconds; 0 if none does. Each read hold has a key of
-- its own, which lives as long as its lease.
local function longest_read_lease(lock, tag)
    local longest = 0
    local holders = redis.call('hgetall', lock)
    for i = 1, #holders, 2 do
        -- `mode` and a writer's field have none.
        for hold = 1, math.min(tonumber(holders[i + 1]) or 0, 1000) do
            longest = math.max(longest, redis.call('pttl', tag .. ':' .. holders[i] .. ':rwlock_timeout:' .. hold))
        end
    end
    return longest
end
