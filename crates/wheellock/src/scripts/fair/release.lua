-- Lowers a holder's hold count. With the last hold, the script notifies the head of the queue. A holder that only waits
-- leaves the queue. If it was the head and the lock is free, the script notifies the new head.
--
-- KEYS[1]  the lock
-- ARGV[1]  its channel; a waiter's own channel has the holder behind it; neither is a key, because a user's key
--          patterns need not cover them
-- ARGV[2]  holder
-- ARGV[3]  the holder's hold count after this call
-- ARGV[4]  PUBLISH or SPUBLISH: the waiters' way to listen
-- ARGV[5]  common part of the names of the lock's other keys, all in the lock's slot
--
-- Returns 1 (released), 0 (still held) or nil. Nil means that this holder does not hold it, or that the key is not a
-- lock. The script has then not changed the lock.
local lock, holder, outer = KEYS[1], ARGV[2], ARGV[3] ~= '0'
local found
if outer then
    found = try('hexists', lock, holder)
else
    found = try('hlen', lock)
end
if type(found) ~= 'number' then
    if not string.find(found.err, 'WRONGTYPE', 1, true) then
        return found
    end
    found = 0
end
if outer then
    -- This HDEL removes nothing. A primary that became a replica refuses it. A server without memory refuses a script's
    -- first write if that write may need memory, but no later write.
    call('hdel', lock, '')
    if found == 0 then
        return nil
    end
    call('hset', lock, holder, ARGV[3])
    return 0
end
local held = found > 0 and call('hdel', lock, holder) == 1
local free = held and found == 1
if not held then
    have_come()
end
if not held and (call('zrem', deadlines, holder) == 1 or call('zrem', waiters, holder) == 1) then
    local first = false
    if all_are_ours(call('llen', queue)) then
        first = call('lindex', queue, '0') == holder
    else
        local behind = {}
        for _, waiter in ipairs(call('lrange', queue, '0', '-1')) do
            if first then
                behind[#behind + 1] = waiter
            end
            first = first or waiter == holder
        end
        move_up(behind)
    end
    call('lrem', queue, '0', holder)
    call('zrem', waiters, holder)
    free = first and call('exists', lock) == 0
end
if free then
    tell_first(ARGV[4], ARGV[1])
end
return held and 1 or nil
