-- Brings a reader's hold count down; with the last hold whose lease runs the lock goes, and waiters are told.
--
-- KEYS[1]  the lock
-- ARGV[1]  its channel; not a key, because a user's key patterns need not cover it
-- ARGV[2]  holder
-- ARGV[3]  the holder's hold count once this call has succeeded
-- ARGV[4]  PUBLISH or SPUBLISH: how the waiters listen
-- ARGV[5]  what the keys that belong to the lock have in common, in the lock's slot
--
-- Returns 1 (given back, or nobody reads any more), 0 (still held) or nil (this holder does not read, or what is there is no read-write lock; nothing
-- was changed).
local lock, holder, count, tag = KEYS[1], ARGV[2], ARGV[3], ARGV[5]
local call = redis.call
-- What most releases are: one of two fields is this reader's only hold, the other is `mode`, and nobody's lease is of interest.
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
    return nil
end
