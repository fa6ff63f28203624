-- Returns the longest remaining lease of these readers in milliseconds, or 0 if no lease runs. Each read hold has a
-- separate key, which lives as long as the hold's lease. `lived` is the remaining time of the lock. A lease that ends
-- with the lock is the longest one. For each leaving holder, `goes` has the number of holds that stay.
local function longest_lease_of(lock, holders, tag, lived, goes)
    local longest, missing = 0, nil
    -- The latest reader is at the end of the hash. In most cases it has the longest lease.
    for i = #holders - 1, 1, -2 do
        local holder = holders[i]
        local count = goes and goes[holder] or tonumber(holders[i + 1]) or 0
        -- `mode` and a writer's field have no lease keys. A cluster node that exports the slot refuses a command on a
        -- key that it does not have.
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
        -- While a cluster moves the slot, a missing key may still be on the other node. The importing node then refuses
        -- this command for both keys, and the script ends.
        redis.call('exists', lock, missing)
    end
    return longest
end

-- Returns the longest remaining lease of all readers if a sample of a few readers shows it, or else nil. If there are
-- many readers, many of them acquired within the same two milliseconds.
local function longest_of_a_few(lock, tag, lived, goes)
    -- Redis 6.0 does not know this command.
    local some = redis.pcall('hrandfield', lock, 4, 'withvalues')
    local longest = longest_lease_of(lock, some, tag, lived, goes)
    if #some > 0 and (#some < 8 or longest > 0 and longest == lived) then
        return longest
    end
end

-- Returns the longest remaining lease of all readers in milliseconds.
local function longest_read_lease(lock, tag, lived, goes)
    return lived and longest_of_a_few(lock, tag, lived, goes)
        or longest_lease_of(lock, redis.call('hgetall', lock), tag, lived, goes)
end
