-- Brings a holder's hold count down; with its last hold the first in the queue is told. Who only waits leaves the queue.
--
-- KEYS[1]  the lock
-- ARGV[1]  its channel; a waiter's own has the holder behind it. Not a key, because a user's key patterns need not cover it
-- ARGV[2]  holder
-- ARGV[3]  the holder's hold count once this call has succeeded
-- ARGV[4]  PUBLISH or SPUBLISH: how the waiters listen
-- ARGV[5]  what the keys that belong to the lock have in common, in the lock's slot
--
-- Returns 1 (given back), 0 (still held) or nil (this holder does not hold it, or what is there is no lock; nothing of it was
-- changed).
local lock, holder = KEYS[1], ARGV[2]
local held = redis.pcall('hexists', lock, holder)
if held ~= 1 and held ~= 0 and not string.find(held.err, 'WRONGTYPE', 1, true) then
    return held
end
if held == 1 and ARGV[3] ~= '0' then
    redis.call('hset', lock, holder, ARGV[3])
    return 0
end
local free = false
if held == 1 then
    redis.call('hdel', lock, holder)
    free = redis.call('exists', lock) == 0
elseif ARGV[3] == '0'
    and (redis.call('zrem', deadlines, holder) == 1 or redis.call('zrem', waiters, holder) == 1)
then
    local behind, found = {}, false
    if all_are_ours() then
        found = redis.call('lindex', queue, 0) == holder
    else
        for _, waiter in ipairs(redis.call('lrange', queue, 0, -1)) do
            if found then
                behind[#behind + 1] = waiter
            end
            found = found or waiter == holder
        end
        move_up(behind)
    end
    redis.call('lrem', queue, 0, holder)
    redis.call('zrem', waiters, holder)
    free = found and redis.call('exists', lock) == 0
end
if free then
    local head = head_of_queue()
    if head then
        -- A user without the channel frees locks all the same; waiters then find out by asking.
        redis.pcall(ARGV[4], ARGV[1] .. ':' .. head, '0')
    end
end
if held == 1 then
    return 1
end
return nil
