-- Notes that a latch has ended, for those who wait: one that is set again under its name is another one.
local function ended(tag)
    local key, time = tag .. ':wheellock_latch', redis.call('time')
    -- Later than the one before, also where the clock was set back.
    local before = tonumber(redis.pcall('get', key) or 0) or 0
    local now = math.max(before + 1, time[1] * 1000000 + time[2])
    redis.call('set', key, string.format('%.0f', now), 'px', 86400000)
end
