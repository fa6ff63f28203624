-- The longest of these readers' leases, in milliseconds; 0 if none runs. Each read hold has a key of its own, which lives as long as its
-- lease. One that ends when the lock does, which `lived` says, is the longest. Of a holder that `goes` names so many holds stay.
local function longest_lease_of(lock, holders, tag, lived, goes)
    local longest, missing = 0, nil
    -- Who came last stands at the end, and mostly has the longest.
    for i = #holders - 1, 1, -2 do
        local holder = holders[i]
        local count = goes and goes[holder] or tonumber(holders[i + 1]) or 0
        -- `mode` and a writer's field have none; where a cluster's slot leaves, a node refuses to look for what it does not have.
        if string.sub(holder, -6) == ':write' then
            count = 0
        end
        for hold = math.min(count, 1000), 1, -1 do
            local timeout = tag .. ':' .. holder .. ':rwlock_timeout:' .. hold
            local left = redis.call('pttl', timeout)
            if left > 0 and lived and math.abs(left - lived) <= 2 then
                return lived
            end
            if left == -2 then
                missing = timeout
            end
            longest = math.max(longest, left)
        end
    end
    if missing then
        -- Where a cluster's slot moves, the node that it goes to refuses to say this of both while one may not have come.
        redis.call('exists', lock, missing)
    end
    return longest
end

-- The same of all readers, if a few of them show it, for many came within these two milliseconds if many come.
local function longest_of_a_few(lock, tag, lived, goes)
    -- Redis 6.0 does not know the command.
    local some = redis.pcall('hrandfield', lock, 4, 'withvalues')
    local longest = longest_lease_of(lock, some, tag, lived, goes)
    if #some > 0 and (#some < 8 or longest > 0 and longest == lived) then
        return longest
    end
end

-- For how long the longest of all readers' leases still runs.
local function longest_read_lease(lock, tag, lived, goes)
    return lived and longest_of_a_few(lock, tag, lived, goes)
        or longest_lease_of(lock, redis.call('hgetall', lock), tag, lived, goes)
end
