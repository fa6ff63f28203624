-- Extends the leases of many read-write locks at once, or reads their remaining time.
--
-- KEYS     the locks
-- ARGV     for each lock: lease in milliseconds, 0 to leave it as it is; holder; common part of the names of the lock's
--          other keys
--
-- Returns the server's time (seconds, microseconds). For each lock then follows 0 (the holder does not hold it) or 1
-- (extended). The script never recreates a lock. If the lease stays as it is, its remaining milliseconds replace the 1.
-- They are at least 1, or -1 if the lease has no end.
--
-- Other data under the name of one lock must not stop the renewal of the others. So such a lock counts as not held.
--
-- The script reads all keys at its end. A server that tracks keys for this client forgets a key with each write, and
-- remembers it with the next read (observed on Redis 7.0).
local reply = redis.call('time')
reply[1], reply[2] = tonumber(reply[1]), tonumber(reply[2])
for i, lock in ipairs(KEYS) do
    local lease, holder, tag = tonumber(ARGV[3 * i - 2]), ARGV[3 * i - 1], ARGV[3 * i]
    local found = redis.pcall('hmget', lock, 'mode', holder)
    if not found.err then
        -- This HDEL removes nothing. A primary that became a replica refuses it. The new primary may get this hold.
        redis.call('hdel', lock, '')
    end
    if found.err then
        if not string.find(found.err, 'WRONGTYPE', 1, true) then
            return found
        end
        reply[i + 2] = 0
    elseif not found[2] or (found[1] ~= 'read' and found[1] ~= 'write') then
        reply[i + 2] = 0
    else
        local left = redis.call('pttl', lock)
        local own, writes = left == 0 and 1 or left, string.sub(holder, -6) == ':write'
        if not writes then
            own = longest_lease_of(lock, {holder, found[2]}, tag)
            -- The watchdog of another reader has shortened the lock's lease for all readers, as Redisson's watchdog
            -- does. The lock gets the longest of its readers' leases again.
            if left >= 0 and left < own then
                left = longest_read_lease(lock, tag)
                redis.call('pexpire', lock, left)
            end
        end
        -- If only this holder made the lock's lease longer than `lease`, the script shortens it. Other holders keep
        -- their leases. A reader never shortens a writer's lease, because that lease does not have a separate key.
        local others
        if lease > 0 and left > lease and own + 2 >= left and writes == (found[1] == 'write') then
            others = longest_read_lease(lock, tag, nil, {[holder] = 0})
        end
        if not writes then
            for hold = 1, lease > 0 and math.min(tonumber(found[2]) or 0, 1000) or 0 do
                local timeout = tag .. ':' .. holder .. ':rwlock_timeout:' .. hold
                -- PEXPIRE comes first, because a server without memory refuses SET as a script's first write.
                if redis.call('pexpire', timeout, lease) == 0 then
                    redis.call('set', timeout, '1', 'px', lease)
                end
            end
        end
        if lease == 0 then
            -- A reader whose own lease has ended does not hold the lock, whatever the leases of other readers.
            reply[i + 2] = own
        else
            if left < lease then
                redis.call('pexpire', lock, lease)
            elseif others then
                redis.call('pexpire', lock, math.max(lease, others))
            end
            reply[i + 2] = 1
        end
    end
end
redis.pcall('exists', unpack(KEYS))
return reply
