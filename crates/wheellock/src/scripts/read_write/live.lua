-- The longest of these readers' leases, in milliseconds; 0 if none runs. Each read hold has a key of its own, which lives as long as its
-- lease. One that ends when the lock does, which `lived` says, is the longest.
local function longest_lease_of(holders, tag, lived)
    local longest = 0
    -- Who came last stands at the end, and mostly has the longest.
    for i = #holders - 1, 1, -2 do
        -- `mode` and a writer's field have none.
        for hold = math.min(tonumber(holders[i + 1]) or 0, 1000), 1, -1 do
            local left = redis.call('pttl', tag .. ':' .. holders[i] .. ':rwlock_timeout:' .. hold)
            if left > 0 and lived and math.abs(left - lived) <= 2 then
                return lived
            end
            longest = math.max(longest, left)
        end
    end
    return longest
end

-- The same of all readers, if a few of them show it, for many came within these two milliseconds if many come.
local function longest_of_a_few(lock, tag, lived)
    -- Redis 6.0 does not know the command.
    local some = redis.pcall('hrandfield', lock, 4, 'withvalues')
    local longest = longest_lease_of(some, tag, lived)
    if #some > 0 and (#some < 8 or longest > 0 and longest == lived) then
        return longest
    end
end

-- For how long the longest of all readers' leases still runs.
local function longest_read_lease(lock, tag, lived)
    return lived and longest_of_a_few(lock, tag, lived) or longest_lease_of(redis.call('hgetall', lock), tag, lived)
end
