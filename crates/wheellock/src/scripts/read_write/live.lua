-- For how long the longest of the readers' leases still runs, in milliseconds; 0 if none does. Each read hold has a key of its
-- own, which lives as long as its lease. One that ends when the lock does, which `lived` says, is the longest.
local function longest_read_lease(lock, tag, lived)
    local longest = 0
    local holders = redis.call('hgetall', lock)
    -- Who came last stands at the end, and mostly has the longest.
    for i = #holders - 1, 1, -2 do
        -- `mode` and a writer's field have none.
        for hold = math.min(tonumber(holders[i + 1]) or 0, 1000), 1, -1 do
            local left = redis.call('pttl', tag .. ':' .. holders[i] .. ':rwlock_timeout:' .. hold)
            if left > 0 and lived and math.abs(left - lived) <= 2 then
                return left
            end
            longest = math.max(longest, left)
        end
    end
    return longest
end
