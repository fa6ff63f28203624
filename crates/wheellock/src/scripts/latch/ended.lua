-- When the last latch of this name has ended.
local function last_end(tag)
    local key = tag .. ':wheellock_latch'
    local before = redis.pcall('get', key)
    if type(before) ~= 'string' then
        -- Where a cluster's slot moves, a node refuses to say this of both while they may be on two nodes.
        redis.call('exists', KEYS[1], key)
    end
    return type(before) == 'string' and tonumber(before) or 0
end

-- Notes that a latch has ended, for those who wait: one that is set again under its name is another one. Later than the one `before`, also
-- where the clock was set back.
local function ended(tag, before)
    local time = redis.call('time')
    local now = math.max(before + 1, time[1] * 1000000 + time[2])
    redis.call('set', tag .. ':wheellock_latch', string.format('%.0f', now), 'px', 86400000)
end
