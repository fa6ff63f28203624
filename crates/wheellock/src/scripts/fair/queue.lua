-- The server's queue of a fair lock. `queue` lists holders in the order in which they came; `deadlines` says, in milliseconds since
-- 1970, until when each is waited for, which Redisson's processes go by; `waiters` says for those of this library until when
-- they live, unless they ask again.
local tag = ARGV[#ARGV]
local queue, deadlines = 'redisson_lock_queue:' .. tag, 'redisson_lock_timeout:' .. tag
local waiters = tag .. ':wheellock_waiters'
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- For how long Redisson's waiters are waited for, each after the one before (its `fairLockWaitTimeout`).
local patience = 300000
-- A waiter of this library says so often that it lives; it counts as dead when it has not been heard of for so long, which is
-- time for two questions and an answer that got lost.
local asks_after, lives_for = 2000, 5000

-- Whether only processes of this library wait: then nobody goes by the deadlines.
local function all_are_ours()
    return redis.call('zcard', waiters) >= redis.call('llen', queue)
end

-- One who was ahead of these has left: each deadline comes earlier by the time that was his.
local function move_up(holders)
    for _, holder in ipairs(holders) do
        if redis.call('zscore', deadlines, holder) then
            redis.call('zincrby', deadlines, -patience, holder)
        end
    end
end

-- Removes those at the head whose time is over. Returns the one who is there then, and whether any was removed.
local function head_of_queue()
    local removed = false
    while true do
        local head = redis.call('lindex', queue, 0)
        if not head then
            return head, removed
        end
        -- Those of this library live as long as they ask; their deadlines are for the others to see.
        local until_when = tonumber(redis.call('zscore', waiters, head) or redis.call('zscore', deadlines, head))
        if until_when and until_when > now then
            return head, removed
        end
        redis.call('lpop', queue)
        redis.call('zrem', deadlines, head)
        redis.call('zrem', waiters, head)
        removed = true
    end
end
