-- Takes one hold of a read-write lock for writing, or says how long the present holders' leases still run.
--
-- KEYS[1]  the lock: a hash with `mode`, and holder -> hold count; a writer's field ends with `:write`
-- ARGV[1]  lease in milliseconds
-- ARGV[2]  holder, with `:write`
-- ARGV[3]  the holder's hold count once this call has succeeded
-- ARGV[4]  what the keys that belong to the lock have in common, in the lock's slot
-- ARGV[5]  for how many milliseconds readers who come stand behind this caller, should it have to wait; 0: not at all
--
-- Returns nil (the lock was free), AGAIN (the holder wrote already) or the present lease's remaining milliseconds; with nothing
-- changed, the error WRONGTYPE if other data or another kind of lock is under the name, and the error UPGRADE if the holder
-- reads: it would wait for itself.
--
-- The count is set, not incremented: a call that is repeated because its reply was lost counts once.
local lock, holder, tag = KEYS[1], ARGV[2], ARGV[4]
local waits = tag .. ':wheellock_writer'
-- Where a cluster's slot moves, a node refuses to say this of both while they may be on two nodes.
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
    -- An inner hold with a short lease must not shorten the outer one's.
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
        -- The same of these.
        redis.call('exists', lock, timeout)
    end
end
-- One who gives up sooner is no reason to forget a writer who waits for longer.
if ARGV[5] ~= '0' and may_wait and redis.call('pttl', waits) < tonumber(ARGV[5]) then
    redis.call('set', waits, holder, 'px', ARGV[5])
end
return redis.call('pttl', lock)
