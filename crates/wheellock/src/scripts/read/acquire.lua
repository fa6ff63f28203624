-- Takes one hold of a read-write lock for reading, or says how long those who are in the way may stay there.
--
-- KEYS[1]  the lock: a hash with `mode`, and holder -> hold count; a writer's field ends with `:write`
-- ARGV[1]  lease in milliseconds
-- ARGV[2]  holder
-- ARGV[3]  the holder's hold count once this call has succeeded
-- ARGV[4]  what the keys that belong to the lock have in common, in the lock's slot
-- ARGV[5]  1 to stand behind a writer who waits, 0 to pass by
--
-- Returns nil (it did not hold before), AGAIN (it did) or the remaining milliseconds of what is in the way, in a list of one if
-- nobody is told when that changes; the error WRONGTYPE, with nothing changed, if other data or another kind of lock is under
-- the name.
--
-- The count is set, not incremented: a call that is repeated because its reply was lost counts once.
local lock, holder, tag = KEYS[1], ARGV[2], ARGV[4]
local call = redis.call
-- Where a cluster's slot moves, a node refuses to say this of both while they may be on two nodes.
local found = redis.pcall('exists', lock, tag .. ':wheellock_writer')
if found == 0 then
    call('set', tag .. ':' .. holder .. ':rwlock_timeout:1', '1', 'px', ARGV[1])
    call('hset', lock, 'mode', 'read', holder, '1')
    call('pexpire', lock, ARGV[1])
    return nil
end
local lease, count = tonumber(ARGV[1]), tonumber(ARGV[3])
local fields = redis.pcall('hlen', lock)
if type(fields) ~= 'number' then
    return fields
end
local mode, held, writes = false, false, false
if fields > 0 then
    mode, held, writes = unpack(call('hmget', lock, 'mode', holder, holder .. ':write'))
end
if fields > 0 and mode ~= 'read' and mode ~= 'write' then
    return redis.error_reply('WRONGTYPE what is under this name is no read-write lock')
elseif mode == 'write' and not writes then
    return call('pttl', lock)
end
-- A writer's mark, and a lease of this holder, may be on the other one.
if type(found) == 'table' then
    return found
end
-- Who holds already must not wait for one who waits for it.
if not held and not writes and ARGV[5] == '1' then
    local waits = call('pttl', tag .. ':wheellock_writer')
    if waits ~= -2 and not mode then
        -- The writer takes the lock at any moment and tells nobody, or it has died.
        return {waits}
    elseif waits ~= -2 then
        -- The leases of those who read may end before, and then nobody is told either.
        local left = call('pttl', lock)
        if left >= 0 and (waits < 0 or left < waits) then
            return left
        end
        return waits
    end
end
-- Earlier holds went with the lock.
if not held then
    count = 1
end
call('set', tag .. ':' .. holder .. ':rwlock_timeout:' .. count, '1', 'px', lease)
if not mode then
    call('hset', lock, 'mode', 'read', holder, count)
    call('pexpire', lock, lease)
    return nil
end
call('hset', lock, holder, count)
-- Nobody's lease is shortened.
if call('pttl', lock) < lease then
    call('pexpire', lock, lease)
end
if held then
    return redis.status_reply('AGAIN')
end
return nil
