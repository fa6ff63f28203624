-- Serves several readers of one lock that acquire at the same moment, or release if `gives` is true. `calls` has the
-- arguments of the script that serves one of them. Returns the reply that all of these calls get. Returns nil and
-- changes nothing if each call has to run by itself. It serves acquires if readers hold the lock, all callers are new
-- readers and no writer is in the way. It serves releases if each reader releases its only hold.
local function many(gives, lock, calls)
    local fields, known, heeds = {'mode'}, {}, false
    for i = 1, #calls do
        local holder = calls[i][2]
        if known[holder] or gives and calls[i][3] ~= '0' then
            return nil
        end
        known[holder] = 0
        fields[#fields + 1] = holder
        if not gives then
            fields[#fields + 1] = holder .. ':write'
            heeds = heeds or calls[i][5] == '1'
        end
    end
    local found = redis.pcall('hmget', lock, unpack(fields))
    if found[1] ~= 'read' then
        return nil
    end
    for i = 2, #found do
        if found[i] ~= (gives and '1') then
            return nil
        end
    end
    local tag = calls[1][gives and 5 or 4]
    local function lease_of(holder)
        return tag .. ':' .. holder .. ':rwlock_timeout:1'
    end
    local longest, named = 0, {}
    if gives then
        local lived, leases = redis.call('pttl', lock), {}
        if lived < 0 then
            return nil
        end
        for i = 1, #calls do
            named[i] = calls[i][2]
            leases[i] = lease_of(named[i])
        end
        -- The hash has `mode` beside the leaving readers. If most readers leave, a sample of a few readers has too few
        -- of the staying readers.
        local stay, left = redis.call('hlen', lock) - #calls - 1, nil
        if stay == 0 then
            left = 0
        elseif stay <= #calls then
            left = longest_lease_of(lock, redis.call('hgetall', lock), tag, lived, known)
        else
            left = longest_of_a_few(lock, tag, lived, known)
        end
        if not left then
            for i = 1, #leases do
                longest = math.max(longest, redis.call('pttl', leases[i]))
            end
            -- If the lock outlives the released leases, another reader's lease is the reason.
            left = longest + 2 < lived and lived
                or longest_lease_of(lock, redis.call('hgetall', lock), tag, lived, known)
        end
        redis.call('del', unpack(leases))
        redis.call('hdel', lock, unpack(named))
        if left <= 0 then
            redis.call('del', lock)
            redis.pcall(calls[1][4], calls[1][1], '0')
        elseif left ~= lived then
            redis.call('pexpire', lock, left)
        end
        return 1
    end
    if heeds and redis.call('exists', tag .. ':wheellock_writer') == 1 then
        return nil
    end
    for i = 1, #calls do
        local lease, holder = calls[i][1], calls[i][2]
        redis.call('set', lease_of(holder), '1', 'px', lease)
        longest = math.max(longest, tonumber(lease))
        named[#named + 1] = holder
        named[#named + 1] = 1
    end
    redis.call('hset', lock, unpack(named))
    if redis.call('pttl', lock) < longest then
        redis.call('pexpire', lock, longest)
    end
    return false
end
