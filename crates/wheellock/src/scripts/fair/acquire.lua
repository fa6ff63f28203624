-- Takes one hold of a fair lock, if nobody came earlier; otherwise stands in the server's queue, and says when to ask again.
--
-- KEYS[1]  the lock: a hash, holder -> hold count
-- ARGV[1]  lease in milliseconds
-- ARGV[2]  holder
-- ARGV[3]  the holder's hold count once this call has succeeded
-- ARGV[4]  1 to stand in the queue, 0 if this is the only question
-- ARGV[5]  the lock's channel; a waiter's own has the holder behind it
-- ARGV[6]  PUBLISH or SPUBLISH: how the waiters listen
-- ARGV[7]  what the keys that belong to the lock have in common, in the lock's slot
--
-- Returns nil (the lock was free), AGAIN (the holder held it already) or the milliseconds after which to ask again at the
-- latest; the error WRONGTYPE, with nothing changed, if other data or another kind of lock is under the name.
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
    -- Where a cluster's slot moves, a node refuses to say this of several keys while they may be on two nodes.
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
        -- An inner hold with a short lease must not shorten the outer one's.
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
        -- The last in the queue takes along what is left of those whom another library has removed. A cluster's node may refuse to see to
        -- several keys at once.
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
        -- Another library may have deleted the queue, and does not know of this.
        call('del', waiters)
    end
    call('hset', lock, holder, '1')
    call('pexpire', lock, lease)
    return nil
end
-- The one behind those who were removed does not know that it is the first.
if free and removed then
    try(ARGV[6], ARGV[5] .. ':' .. head, '0')
end
-- Of a hold without a TTL, which another hand has made, nothing says when it ends.
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
-- Empty sets vanish by themselves; an entry may stay whose holder died and was removed by another library. While its deadline runs, which
-- is far off where the lease is long, it is kept: without it a dead holder is waited for until then. Behind what a hand has set the
-- deadline may be any number.
local kept = math.max(86400000, math.min(math.floor(deadline - now + patience), 1000000000000))
-- An hour more, so that it is seldom done.
if known < kept then
    call('pexpire', waiters, kept + 3600000)
end
local after = try('exists', mark) == 1 and asks_untold_after or asks_after
if (head or holder) == holder then
    return math.min(left, after)
end
return after
