-- Writes many held locks into a server that has taken over and may not know them.
--
-- KEYS     the locks: a hash each, holder -> hold count
-- ARGV[1]  the fleet
-- ARGV[2]  the server's run id and replication id
-- ARGV     for each lock: lease in milliseconds; holder; hold count; end of the hold by the server's clock, in
--          milliseconds
--
-- Returns the server's time (seconds, microseconds). For each lock then follows 1 (the holder holds it for the lease at
-- least) or 0 (nothing was changed).
--
-- Until the grace is over, any other holder of the lock is an old copy: there are no two valid holds. So the holder
-- takes its place. Afterwards the lock may have been granted to another owner, and the holder takes only a free lock. A
-- reclaim that arrives after the end of its hold has no effect.
local reply = redis.call('time')
reply[1], reply[2] = tonumber(reply[1]), tonumber(reply[2])
local now = reply[1] * 1000 + math.floor(reply[2] / 1000)
local over = is_grace_over(ARGV[1], ARGV[2])
for i, lock in ipairs(KEYS) do
    local lease, holder, count, ends = ARGV[4 * i - 1], ARGV[4 * i], ARGV[4 * i + 1], tonumber(ARGV[4 * i + 2])
    local held = redis.pcall('hget', lock, holder)
    if type(held) == 'table' and not string.find(held.err, 'WRONGTYPE', 1, true) then
        return held
    end
    local exists = redis.call('exists', lock) == 1
    reply[i + 2] = 0
    if over ~= nil and now < ends and type(held) ~= 'table' and (held or not exists or not over) then
        if exists and not held then
            redis.call('del', lock)
        end
        redis.call('hset', lock, holder, count)
        if redis.call('pttl', lock) < tonumber(lease) then
            redis.call('pexpire', lock, lease)
        end
        reply[i + 2] = 1
    end
end
return reply
