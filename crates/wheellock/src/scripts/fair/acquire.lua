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
local lock, lease, holder = KEYS[1], tonumber(ARGV[1]), ARGV[2]
local held = redis.pcall('hexists', lock, holder)
if held == 1 then
    redis.call('hset', lock, holder, ARGV[3])
    -- An inner hold with a short lease must not shorten the outer one's.
    if redis.call('pttl', lock) < lease then
        redis.call('pexpire', lock, lease)
    end
    return redis.status_reply('AGAIN')
end
if held ~= 0 then
    return held
end
local free = redis.call('exists', lock) == 0
-- Only a read-write lock has this field.
if not free and redis.call('hexists', lock, 'mode') == 1 then
    return redis.error_reply('WRONGTYPE a read-write lock is under this name')
end
local head, removed = head_of_queue()
if free and (not head or head == holder) then
    if head then
        redis.call('lpop', queue)
        redis.call('zrem', deadlines, holder)
        redis.call('zrem', waiters, holder)
        if not all_are_ours() then
            move_up(redis.call('zrange', deadlines, 0, -1))
        end
    else
        -- Another library may have deleted the queue, and does not know of this.
        redis.call('del', waiters)
    end
    redis.call('hset', lock, holder, 1)
    redis.call('pexpire', lock, lease)
    return nil
end
-- The one behind those who were removed does not know that it is the first.
if free and removed then
    redis.pcall(ARGV[6], ARGV[5] .. ':' .. head, '0')
end
local left = math.max(redis.call('pttl', lock), 0)
if ARGV[4] == '0' then
    return left
end
local deadline = redis.call('zscore', deadlines, holder)
if not deadline then
    local last = redis.call('lindex', queue, -1)
    deadline = now + left + patience * (redis.call('llen', queue) + 1)
    if last and not all_are_ours() then
        deadline = (tonumber(redis.call('zscore', deadlines, last)) or now) + patience
    end
    redis.call('rpush', queue, holder)
    redis.call('zadd', deadlines, deadline, holder)
elseif tonumber(deadline) < now + patience / 2 then
    redis.call('zadd', deadlines, now + patience, holder)
end
redis.call('zadd', waiters, now + lives_for, holder)
-- Empty sets vanish by themselves; an entry may stay whose holder died and was removed by another library.
redis.call('pexpire', waiters, 86400000)
if (head or holder) == holder then
    return math.min(left, asks_after)
end
return asks_after
