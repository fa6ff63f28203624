-- Acquires one hold of a read-write lock for reading, or returns the remaining milliseconds of the obstacle. The
-- obstacle is a writer that holds the lock or waits for it.
--
-- KEYS[1]  the lock: a hash with `mode`, and holder -> hold count; a writer's field ends with `:write`
-- ARGV[1]  lease in milliseconds
-- ARGV[2]  holder
-- ARGV[3]  the holder's hold count after this call; a holder without holds gets the count 1
-- ARGV[4]  common part of the names of the lock's other keys, all in the lock's slot
-- ARGV[5]  1 to yield to a waiting writer, 0 to pass it
--
-- Returns nil (the holder did not have it), AGAIN (the holder had it already) or the remaining milliseconds. These are
-- -1 if the obstacle has no end. They are in a list of one if no message announces the end. If the key has other data
-- or another kind of lock, the script changes nothing and returns the error WRONGTYPE.
--
-- The script sets the count and does not increment it. So a call counts once, even if the caller repeats it because the
-- reply was lost.
local lock, holder, tag = KEYS[1], ARGV[2], ARGV[4]
local call = redis.call
-- While a cluster moves the slot, the keys may be on two nodes. A node then refuses this command for both keys.
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
-- The other node may have a waiting writer's mark or a lease of this holder.
if type(found) == 'table' then
    return found
end
-- A holder must not wait for a writer that waits for this holder.
if not held and not writes and ARGV[5] == '1' then
    local waits = call('pttl', tag .. ':wheellock_writer')
    if waits ~= -2 and not mode then
        -- The writer may acquire the lock at any moment, without a message. Or the writer is dead.
        return {waits}
    elseif waits ~= -2 then
        -- The leases of the present readers may end earlier than the mark, and no message announces that, either.
        local left = call('pttl', lock)
        if left >= 0 and (waits < 0 or left < waits) then
            return left
        end
        return waits
    end
end
-- Earlier holds have ended with the lock that they belonged to.
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
-- This hold must not shorten the lease of another hold.
if call('pttl', lock) < lease then
    call('pexpire', lock, lease)
end
if held then
    return redis.status_reply('AGAIN')
end
return nil
