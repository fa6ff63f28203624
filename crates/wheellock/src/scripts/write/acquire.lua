-- Acquires one hold of a read-write lock for writing, or returns the remaining milliseconds of the present leases.
--
-- KEYS[1]  the lock: a hash with `mode`, and holder -> hold count; a writer's field ends with `:write`
-- ARGV[1]  lease in milliseconds
-- ARGV[2]  holder, with `:write`
-- ARGV[3]  the holder's hold count after this call; a free lock gets the count 1
-- ARGV[4]  common part of the names of the lock's other keys, all in the lock's slot
-- ARGV[5]  milliseconds for which later readers yield to this caller if it has to wait; 0 if they do not yield
--
-- Returns nil (the lock was free), AGAIN (the holder wrote already) or the remaining milliseconds. These are -1 if the
-- lease has no end. If the key has other data or another kind of lock, the script changes nothing and returns the error
-- WRONGTYPE. If the holder reads, it would wait for itself. The script then changes nothing and returns the error
-- UPGRADE.
--
-- The script sets the count and does not increment it. So a call counts once, even if the caller repeats it because the
-- reply was lost.
local lock, holder, tag = KEYS[1], ARGV[2], ARGV[4]
local waits = tag .. ':wheellock_writer'
-- While a cluster moves the slot, the keys may be on two nodes. A node then refuses this command for both keys.
local found = redis.pcall('exists', lock, waits)
local may_wait = type(found) == 'number'
if found == 0 then
    redis.call('hset', lock, 'mode', 'write', holder, '1')
    redis.call('pexpire', lock, ARGV[1])
    return nil
end
local lease = tonumber(ARGV[1])
local reader = string.sub(holder, 1, -7)
found = redis.pcall('hmget', lock, 'mode', holder, reader)
if found.err then
    return found
end
local mode, held, reads = found[1], found[2], found[3]
if not mode then
    if redis.call('exists', lock) == 1 then
        return redis.error_reply('WRONGTYPE what is under this name is no read-write lock')
    end
    redis.call('hset', lock, 'mode', 'write', holder, '1')
    redis.call('pexpire', lock, lease)
    redis.call('del', waits)
    return nil
end
if mode == 'write' and held then
    redis.call('hset', lock, holder, ARGV[3])
    -- A nested hold with a shorter lease must not shorten the lease of the outer hold.
    if redis.call('pttl', lock) < lease then
        redis.call('pexpire', lock, lease)
    end
    return redis.status_reply('AGAIN')
end
if mode ~= 'read' and mode ~= 'write' then
    return redis.error_reply('WRONGTYPE what is under this name is no read-write lock')
end
for hold = 1, math.min(tonumber(reads) or 0, 1000) do
    local timeout = tag .. ':' .. reader .. ':rwlock_timeout:' .. hold
    local left = redis.call('pttl', timeout)
    if left > 0 then
        return redis.error_reply('UPGRADE this holder reads, and would wait for itself')
    elseif left == -2 then
        -- While a cluster moves the slot, a missing key may still be on the other node. The importing node then refuses
        -- this command for both keys, and the script ends.
        redis.call('exists', lock, timeout)
    end
end
-- A writer with a shorter wait must not replace the mark of a writer that waits longer.
if ARGV[5] ~= '0' and may_wait and redis.call('pttl', waits) < tonumber(ARGV[5]) then
    redis.call('set', waits, holder, 'px', ARGV[5])
end
return redis.call('pttl', lock)
