-- Extends many leases of read-write locks at once, or looks how long they still run.
--
-- KEYS     locks
-- ARGV     for each lock: lease in milliseconds, 0 to leave it as it is; holder; what the keys that belong to the lock have in
--          common
--
-- Returns the server's clock (seconds, microseconds), then for each lock 0 (the holder does not hold it; it is never
-- created anew), or else 1 (extended); of a lease that was left as it is the remaining milliseconds instead, at least 1,
-- or -1 if it has no end.
--
-- Data of another type under one lock's name is an error that must not keep the others from being renewed.
local reply = redis.call('time')
reply[1], reply[2] = tonumber(reply[1]), tonumber(reply[2])
for i, lock in ipairs(KEYS) do
    local lease, holder, tag = tonumber(ARGV[3 * i - 2]), ARGV[3 * i - 1], ARGV[3 * i]
    local found = redis.pcall('hmget', lock, 'mode', holder)
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
            -- Another reader's watchdog has shortened the lock for everybody (Redisson's does).
            if left >= 0 and left < own then
                left = longest_read_lease(lock, tag)
                redis.call('pexpire', lock, left)
            end
        end
        -- What this holder alone has made longer is set as it is, and nobody else's lease is shortened: a writer's has no key of its own.
        local others
        if lease > 0 and left > lease and own + 2 >= left and writes == (found[1] == 'write') then
            others = longest_read_lease(lock, tag, nil, {[holder] = 0})
        end
        if not writes then
            for hold = 1, lease > 0 and math.min(tonumber(found[2]) or 0, 1000) or 0 do
                local timeout = tag .. ':' .. holder .. ':rwlock_timeout:' .. hold
                -- Only the first is not refused by a server without memory.
                if redis.call('pexpire', timeout, lease) == 0 then
                    redis.call('set', timeout, '1', 'px', lease)
                end
            end
        end
        if lease == 0 then
            -- A reader whose own lease has ended holds nothing, however long others hold on.
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
return reply
