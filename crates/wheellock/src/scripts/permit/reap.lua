-- Gives a semaphore back the permits whose leases have ended, so many at a time that the server is not held up.
local function reap(semaphore, leases, now)
    local ended = math.min(redis.call('zcount', leases, '-inf', now), 1000)
    if ended > 0 then
        redis.call('zremrangebyrank', leases, 0, ended - 1)
        redis.call('incrby', semaphore, ended)
    end
    return ended
end

-- The server's clock, in milliseconds: Redisson writes the client's.
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
