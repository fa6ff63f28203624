-- The server's queue of a fair lock. `queue` lists holders in the order in which they came; `deadlines` says, in milliseconds since
-- 1970, until when each is waited for, which Redisson's processes go by; `waiters` says for those of this library until when
-- they live, unless they ask again.
--
-- Commands are what these scripts cost, so none is run for what is known already.
local call, try, tag = redis.call, redis.pcall, ARGV[#ARGV]
local queue, deadlines = 'redisson_lock_queue:' .. tag, 'redisson_lock_timeout:' .. tag
local waiters = tag .. ':wheellock_waiters'
-- For how long Redisson's waiters are waited for, each after the one before (its `fairLockWaitTimeout`).
local patience = 300000
-- A waiter of this library says so often that it lives; it counts as dead when it has not been heard of for so long, which is
-- time for two questions and an answer that got lost.
local asks_after, lives_for = 2000, 5000
-- While a holder cannot announce its releases, no message ends a wait. The holder's release sets this mark, and waiters ask more often.
local asks_untold_after, mark, marked_for = 250, tag .. ':wheellock_poller', 5000

local function clock()
    local time = call('time')
    return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Where a cluster's slot moves, the node that it goes to refuses to say this of all while one may not have come, and this script ends.
local function have_come()
    call('exists', queue, deadlines, waiters)
end

-- Whether only processes of this library wait, who are so many in the queue: then nobody goes by the deadlines.
local function all_are_ours(length)
    return length == 0 or call('zcard', waiters) >= length
end

-- One who was ahead of these has left: each deadline comes earlier by the time that was his.
local function move_up(holders)
    for _, holder in ipairs(holders) do
        if call('zscore', deadlines, holder) then
            call('zincrby', deadlines, -patience, holder)
        end
    end
end

-- Waiters of this library that lived when the last of them asked get time for one more question, if all have been silent for longer than
-- any of them ever is: then the server stood still, and its silence is no sign of their death. Returns the time of the last question if so.
local function last_asked_before_stall(now)
    local newest = call('zrange', waiters, '-1', '-1', 'withscores')[2]
    local asked = newest and tonumber(newest) - lives_for
    if not asked or now - asked <= asks_after + 1000 then
        return nil
    end
    local all = call('zrange', waiters, '0', '-1', 'withscores')
    for i = 1, #all, 2 do
        if tonumber(all[i + 1]) > asked then
            call('zadd', waiters, now + lives_for, all[i])
        end
    end
    return asked
end

-- Removes those at the head, of whom this is the first, whose time is over, but not the one who asks, who lives. Returns the one who is
-- there then, if there is one, and whether that one may not know that it is the first.
local function living_head(head, now, asks)
    local removed, has_looked, asked = false, false, nil
    while head and head ~= asks do
        -- Those of this library live as long as they ask; their deadlines are for the others to see.
        local lives = call('zscore', waiters, head)
        local until_when = tonumber(lives or call('zscore', deadlines, head))
        if until_when and until_when > now then
            return head, removed
        end
        if not has_looked then
            have_come()
            asked, has_looked = last_asked_before_stall(now), true
        end
        if lives and asked and until_when > asked then
            return head, true
        end
        call('lpop', queue)
        call('zrem', deadlines, head)
        call('zrem', waiters, head)
        removed = true
        head = call('lindex', queue, '0')
    end
    return head, removed
end

-- Tells the first in the queue that the lock is free. Who hears of it lives; if nobody does, those whose time is over are removed, and the
-- one who is the first then is told.
local function tell_first(publish, channel)
    -- Where a cluster's slot moves, a node may refuse to say it; waiters then find out by asking.
    local told = try('lindex', queue, '0')
    if type(told) ~= 'string' then
        return
    end
    -- A user without the channel frees locks all the same; waiters then find out by asking.
    local heard = try(publish, channel .. ':' .. told, '0')
    if type(heard) == 'number' and heard > 0 then
        return
    end
    if type(heard) == 'table' then
        -- A user whose key patterns do not cover the mark sets none.
        try('set', mark, '1', 'px', marked_for)
    end
    local seen, head = pcall(living_head, told, clock())
    if seen and head and head ~= told then
        try(publish, channel .. ':' .. head, '0')
    end
end
