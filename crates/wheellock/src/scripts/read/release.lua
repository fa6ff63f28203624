-- Lowers a reader's hold count. With the last hold whose lease runs, the lock ends, and the script notifies the
-- waiters.
--
-- KEYS[1]  the lock
-- ARGV[1]  its channel; not a key, because a user's key patterns need not cover it
-- ARGV[2]  holder
-- ARGV[3]  the holder's hold count after this call
-- ARGV[4]  PUBLISH or SPUBLISH: the waiters' way to listen
-- ARGV[5]  common part of the names of the lock's other keys, all in the lock's slot
--
-- Returns 1 (released, or there is no reader any more), 0 (still held) or nil. Nil means that this holder does not
-- read, or that the key is not a read-write lock. The script has then changed nothing.
local lock, holder, count, tag = KEYS[1], ARGV[2], ARGV[3], ARGV[5]
local call = redis.call
-- The most frequent release: the hash has `mode` and this reader's only hold. The leases of other readers do not matter
-- then.
local last = count == '0' and redis.pcall('hlen', lock) == 2
if last and call('hget', lock, holder) == '1' and call('hexists', lock, 'mode') == 1 then
    call('del', tag .. ':' .. holder .. ':rwlock_timeout:1', lock)
    redis.pcall(ARGV[4], ARGV[1], '0')
    return 1
end
local found = redis.pcall('hmget', lock, 'mode', holder)
if found.err then
    if string.find(found.err, 'WRONGTYPE', 1, true) then
        return nil
    end
    return found
end
local mode, held = found[1], found[2]
if (mode ~= 'read' and mode ~= 'write') or not held then
    -- This HDEL removes nothing. A primary that became a replica refuses it.
    call('hdel', lock, '')
    return nil
end
