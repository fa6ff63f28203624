-- Returns true if `holder` has the lock already, and false if it may take the place of `owner`. Returns nil if `owner` does
-- not hold the lock alone and once.
local function has_adopted(lock, holder, owner)
    if redis.call('hexists', lock, holder) == 1 then
        return true
    end
    -- A read-write lock has a field for its mode.
    local others = redis.call('hlen', lock) - 1 - redis.call('hexists', lock, 'mode')
    if others == 0 and redis.call('hget', lock, owner) == '1' then
        return false
    end
end

-- Puts `holder` in the place of `owner`, unless it is there already, for a whole lease.
local function adopt(lock, holder, owner, lease, again)
    if not again then
        -- HDEL comes first, because a server without memory refuses HSET as a script's first write.
        redis.call('hdel', lock, owner)
        redis.call('hset', lock, holder, '1')
    end
    redis.call('pexpire', lock, lease)
end

