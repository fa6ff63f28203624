-- Notes that a latch has ended, for those who wait: one that is set again under its name is another one.
local function ended(tag)
    local time = redis.call('time')
    redis.call('set', tag .. ':wheellock_latch', time[1] .. string.format('%06d', time[2]), 'px', 86400000)
end
