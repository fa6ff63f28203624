-- Writes many held locks of a single instance into a server that has taken over and may not know them.
--
-- KEYS     the locks
-- ARGV[1]  the fleet
-- ARGV[2]  the server's run id and replication id
-- ARGV     for each lock: lease in milliseconds; token; hold count, which is 1; end of the hold by the server's clock, in
--          milliseconds
--
-- Returns the server's time (seconds, microseconds). For each lock then follows 1 (the token holds it for the lease at
-- least) or 0 (nothing was changed). `reclaim.lua` says when a reclaim has an effect.
local reply = redis.call('time')
reply[1], reply[2] = tonumber(reply[1]), tonumber(reply[2])
local now = reply[1] * 1000 + math.floor(reply[2] / 1000)
local over = is_grace_over(ARGV[1], ARGV[2])
for i, lock in ipairs(KEYS) do
    local lease, token, ends = tonumber(ARGV[4 * i - 1]), ARGV[4 * i], tonumber(ARGV[4 * i + 2])
    local held = redis.pcall('get', lock)
    if type(held) == 'table' and not string.find(held.err, 'WRONGTYPE', 1, true) then
        return held
    end
    reply[i + 2] = 0
    if over ~= nil and now < ends and type(held) ~= 'table' and (held == token or not held or not over) then
        if held == token then
            lease = math.max(lease, redis.call('pttl', lock))
        end
        -- PEXPIRE comes first, because a server without memory refuses SET as a script's first write.
        redis.call('pexpire', lock, lease)
        redis.call('set', lock, token, 'px', lease)
        reply[i + 2] = 1
    end
end
return reply
