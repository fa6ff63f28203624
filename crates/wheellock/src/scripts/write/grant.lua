-- Reads a read-write lock for a writer. Returns true if the holder writes already. Returns false if the lock is free,
-- and the key of the writers' mark, unless no mark exists. Otherwise returns nil and the reply that refuses the writer.
-- A refused writer leaves its mark for `yields` milliseconds, and later readers yield to it.
local function writes_already(lock, holder, tag, yields)
    local waits = tag .. ':wheellock_writer'
    -- While a cluster moves the slot, the keys may be on two nodes. A node then refuses this command for both keys.
    local found = redis.pcall('exists', lock, waits)
    if found == 0 then
        return false
    end
    local may_wait, reader = type(found) == 'number', string.sub(holder, 1, -7)
    found = redis.pcall('hmget', lock, 'mode', holder, reader)
    if found.err then
        return nil, found
    end
    local mode, held, reads = found[1], found[2], found[3]
    if not mode and redis.call('exists', lock) == 0 then
        return false, waits
    elseif mode == 'write' and held then
        return true
    elseif mode ~= 'read' and mode ~= 'write' then
        return nil, redis.error_reply('WRONGTYPE what is under this name is no read-write lock')
    end
    for hold = 1, math.min(tonumber(reads) or 0, 1000) do
        local timeout = tag .. ':' .. reader .. ':rwlock_timeout:' .. hold
        local left = redis.call('pttl', timeout)
        if left > 0 then
            return nil, redis.error_reply('UPGRADE this holder reads, and would wait for itself')
        elseif left == -2 then
            -- While a cluster moves the slot, a missing key may still be on the other node. The importing node then
            -- refuses this command for both keys, and the script ends.
            redis.call('exists', lock, timeout)
        end
    end
    -- A writer with a shorter wait must not replace the mark of a writer that waits longer.
    if yields ~= '0' and may_wait and redis.call('pttl', waits) < tonumber(yields) then
        redis.call('set', waits, holder, 'px', yields)
    end
    return nil, redis.call('pttl', lock)
end

-- Writes a hold that `writes_already` admits. The first grant withdraws the mark.
local function write_hold(lock, holder, count, lease, again, mark)
    if not again then
        redis.call('hset', lock, 'mode', 'write', holder, '1')
        redis.call('pexpire', lock, lease)
        if mark then
            redis.call('del', mark)
        end
        return
    end
    redis.call('hset', lock, holder, count)
    -- A nested hold with a shorter lease must not shorten the lease of the outer hold.
    if redis.call('pttl', lock) < tonumber(lease) then
        redis.call('pexpire', lock, lease)
    end
end

