-- Returns permits whose leases have ended to their semaphore, at most 1000 at once, so that the server stays
-- responsive. Returns the number of these permits.
local function reap(semaphore, leases, now)
    local ended = math.min(redis.call('zcount', leases, '-inf', now), 1000)
    if ended > 0 then
        redis.call('zremrangebyrank', leases, 0, ended - 1)
        redis.call('incrby', semaphore, ended)
    end
    return ended
end

-- The server's time in milliseconds. Redisson uses the client's clock instead.
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
