-- The queue of a fair lock on the server. The last argument of a script that includes it is the common part of the
-- keys' names. `queue` lists the holders that wait, in the order of their arrival. `deadlines` has the end of each
-- holder's wait in milliseconds since 1970. Redisson's processes obey these deadlines. `waiters` has only waiters of
-- this library. Each of them counts as dead after the stored time, unless it polls again.
--
-- The commands are the cost of these scripts, so no command reads a value that the script knows already.
local call, try, tag = redis.call, redis.pcall, ARGV[#ARGV]
local queue, deadlines = 'redisson_lock_queue:' .. tag, 'redisson_lock_timeout:' .. tag
local waiters = tag .. ':wheellock_waiters'
-- Milliseconds for which Redisson's processes wait for each waiter, counted from the waiter before it
-- (`fairLockWaitTimeout`).
local patience = 300000
-- A waiter of this library polls every `asks_after` milliseconds. It counts as dead after `lives_for` without a poll.
-- That is time for two polls and a lost reply.
local asks_after, lives_for = 2000, 5000
-- While a holder cannot announce its releases, no message ends a wait. The holder's release sets this mark, and waiters
-- poll more often if they are few.
local asks_untold_after, mark, marked_for, few = 250, tag .. ':wheellock_poller', 5000, 64

-- Returns the server's time in milliseconds since 1970.
local function clock()
    local time = call('time')
    return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Ends the script if a cluster moves the slot and one of the keys may be on the other node. The importing node then
-- refuses a command for all of them.
local function have_come()
    call('exists', queue, deadlines, waiters)
end

-- Returns true if all `length` waiters in the queue belong to this library. Then no process obeys the deadlines.
local function all_are_ours(length)
    return length == 0 or call('zcard', waiters) >= length
end

-- Moves the deadlines of these holders up, because a waiter before them has left. Each deadline comes earlier by the
-- time of that waiter.
local function move_up(holders)
    for _, holder in ipairs(holders) do
        if call('zscore', deadlines, holder) then
            call('zincrby', deadlines, -patience, holder)
        end
    end
end

-- Finds out whether the server stood still. It did if all waiters of this library have been silent for too long. Their
-- silence is then not a sign of their death. The waiters that were alive at the last poll get time for one more poll.
-- Their scores end in .5 until they poll. Returns the time of the last poll if the server stood still, or else nil.
local function last_asked_before_stall(now)
    local newest = call('zrange', waiters, '-1', '-1', 'withscores')[2]
    local asked = newest and tonumber(newest) - lives_for
    -- If no waiter has polled since it got more time, all are dead. Otherwise a caller that tries only once would never
    -- get the lock.
    if not asked or asked % 1 ~= 0 or now - asked <= asks_after + 1000 then
        return nil
    end
    local all = call('zrange', waiters, '0', '-1', 'withscores')
    for i = 1, #all, 2 do
        if tonumber(all[i + 1]) > asked then
            call('zadd', waiters, now + lives_for - 0.5, all[i])
        end
    end
    return asked
end

-- Removes dead waiters from the head of the queue, beginning with `head`. The waiter `asks` is alive, because it polls.
-- Returns the new head, if there is one. The second result is true if this head may not know that it is the head.
local function living_head(head, now, asks)
    local removed, has_looked, asked = false, false, nil
    while head and head ~= asks do
        -- Waiters of this library live as long as they poll. Their deadlines are only for Redisson's processes.
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

-- Notifies the head of the queue that the lock is free. A head that receives the message is alive. If no waiter
-- receives it, the script removes dead waiters and notifies the new head.
local function tell_first(publish, channel)
    -- While a cluster moves the slot, a node may refuse this command. The waiters then notice the release when they
    -- poll.
    local told = try('lindex', queue, '0')
    if type(told) ~= 'string' then
        return
    end
    -- A user without permission for the channel still frees locks. The waiters then notice the release when they poll.
    local heard = try(publish, channel .. ':' .. told, '0')
    if type(heard) == 'number' and heard > 0 then
        return
    end
    if type(heard) == 'table' then
        -- A user whose key patterns do not cover the mark cannot set it.
        try('set', mark, '1', 'px', marked_for)
    end
    local seen, head = pcall(living_head, told, clock())
    if seen and head and head ~= told then
        try(publish, channel .. ':' .. head, '0')
    end
end
