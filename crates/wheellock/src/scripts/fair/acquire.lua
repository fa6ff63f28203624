-- Acquires one hold of a fair lock if there is no earlier waiter. Otherwise joins the server's queue and returns when
-- to poll.
--
-- KEYS[1]  the lock: a hash, holder -> hold count
-- ARGV[1]  lease in milliseconds
-- ARGV[2]  holder
-- ARGV[3]  the holder's hold count after this call; a free lock gets the count 1
-- ARGV[4]  1 to join the queue, 0 if the caller polls only once
-- ARGV[5]  the lock's channel; a waiter's own channel has the holder behind it
-- ARGV[6]  PUBLISH or SPUBLISH: the waiters' way to listen
-- ARGV[7]  common part of the names of the lock's other keys, all in the lock's slot
--
-- Returns nil (the lock was free), AGAIN (the holder had it already) or the milliseconds until the next poll. If the
-- key has other data or another kind of lock, the script changes nothing and returns the error WRONGTYPE.
local lock, lease, holder = KEYS[1], ARGV[1], ARGV[2]
local first = try('lrange', queue, '0', '1')
if first.err then
    first = {first}
end
local head = first[1]
if not head then
    local found = try('exists', lock, waiters, queue)
    if found == 0 then
        call('hset', lock, holder, '1')
        call('pexpire', lock, lease)
        return nil
    end
    -- While a cluster moves the slot, the keys may be on two nodes. A node then refuses this command for several keys.
    head = type(found) == 'table' and found
end
local left = call('pttl', lock)
local free = left == -2
if not free then
    local held = holders_of(lock)
    if held.err then
        return held
    end
    if held[holder] then
        call('hset', lock, holder, ARGV[3])
        -- A nested hold with a shorter lease must not shorten the lease of the outer hold.
        if left < tonumber(lease) then
            call('pexpire', lock, lease)
        end
        return redis.status_reply('AGAIN')
    end
end
if type(head) == 'table' then
    return head
end
local now, removed
if head and head ~= holder then
    now = clock()
    head, removed = living_head(head, now, holder)
end
if free and (not head or head == holder) then
    if head then
        -- The last waiter deletes all keys of the queue. That also removes the entries of waiters that another library
        -- has removed from the queue. A cluster node may refuse a command for several keys.
        if removed or first[2] or type(try('del', queue, deadlines, waiters)) ~= 'number' then
            if call('zrem', deadlines, holder) + call('zrem', waiters, holder) < 2 then
                have_come()
            end
            call('lpop', queue)
            if not all_are_ours(call('llen', queue)) then
                move_up(call('zrange', deadlines, '0', '-1'))
            end
        end
    else
        -- Another library may have deleted the queue. It does not know this key.
        call('del', waiters)
    end
    call('hset', lock, holder, '1')
    call('pexpire', lock, lease)
    return nil
end
-- The waiter behind the removed ones does not know that it is the head.
if free and removed then
    try(ARGV[6], ARGV[5] .. ':' .. head, '0')
end
-- A hold without a TTL comes from another client. Its end is not known.
left = left == -1 and asks_after or math.max(left, 0)
if ARGV[4] == '0' then
    return left
end
now = now or clock()
local deadline, known = tonumber(call('zscore', deadlines, holder)), call('pttl', waiters)
if not deadline or known == -2 then
    have_come()
end
if not deadline then
    local before = call('rpush', queue, holder) - 1
    deadline = now + left + patience * (before + 1)
    if not all_are_ours(before) then
        local last = call('lindex', queue, '-2')
        deadline = (tonumber(call('zscore', deadlines, last)) or now) + patience
    end
    call('zadd', deadlines, deadline, holder)
elseif deadline < now + patience / 2 then
    deadline = now + patience
    call('zadd', deadlines, deadline, holder)
end
call('zadd', waiters, now + lives_for, holder)
-- The server deletes an empty queue by itself. But the entries of dead holders stay if no process wants the lock any
-- more, or if another library removed the holder. So the keys need a TTL, which must not end before the deadline. That
-- is far off if the lease is long. Without its entry, a dead holder would keep its place until the deadline. The
-- deadline may be any number if another client has set the deadline of the waiter before.
local kept = math.max(86400000, math.min(math.floor(deadline - now + patience), 1000000000000))
-- One more hour makes these commands rare.
if known < kept then
    for _, key in ipairs({waiters, queue, deadlines}) do
        call('pexpire', key, kept + 3600000)
    end
end
local after = asks_after
if try('exists', mark) == 1 and call('llen', queue) <= few then
    after = asks_untold_after
end
if (head or holder) == holder then
    return math.min(left, after)
end
return after
