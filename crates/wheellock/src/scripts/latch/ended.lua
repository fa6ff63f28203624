-- Returns when the last latch of this name ended, in microseconds since 1970, or 0 if that is not known.
local function last_end(tag)
    local key = tag .. ':wheellock_latch'
    local before = redis.pcall('get', key)
    if type(before) ~= 'string' then
        -- While a cluster moves the slot, the keys may be on two nodes. A node then refuses this command for both, and
        -- the script ends.
        redis.call('exists', KEYS[1], key)
    end
    return type(before) == 'string' and tonumber(before) or 0
end

-- Stores for a day when a latch ended. Otherwise its waiters would take a new latch of the same name for theirs. The
-- stored time is later than `before`, even if the server's clock was set back.
local function ended(tag, before)
    local time = redis.call('time')
    local now = math.max(before + 1, time[1] * 1000000 + time[2])
    redis.call('set', tag .. ':wheellock_latch', string.format('%.0f', now), 'px', 86400000)
end
