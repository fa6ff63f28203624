-- Takes one hold of each of several locks, or of none of them.
--
-- KEYS     the locks
-- ARGV     for each lock: lease in milliseconds, holder, the holder's hold count once this call has succeeded
--
-- Returns 0, the place of the first lock that another holder has (from 1), and its lease's remaining milliseconds;
-- -1 and the place of the first name with other data or another kind of lock; or 1, and for each lock 1 (it was free) or
-- 2 (the holder held it already). Nothing was changed in the first two cases.
--
-- Each lock is taken as `acquire.lua` takes it, and a repeated call counts once, too.
local held = {}
for i, lock in ipairs(KEYS) do
    if redis.call('exists', lock) == 1 then
        held[i] = holders_of(lock)
        if held[i].err then
            if string.find(held[i].err, 'WRONGTYPE', 1, true) then
                return {-1, i}
            end
            return held[i]
        elseif not held[i][ARGV[3 * i - 1]] then
            return {0, i, redis.call('pttl', lock)}
        end
    end
end
local reply = {1}
for i, lock in ipairs(KEYS) do
    local lease, holder, count = ARGV[3 * i - 2], ARGV[3 * i - 1], ARGV[3 * i]
    if not held[i] then
        redis.call('hset', lock, holder, '1')
        redis.call('pexpire', lock, lease)
        reply[i + 1] = 1
    else
        redis.call('hset', lock, holder, count)
        if redis.call('pttl', lock) < tonumber(lease) then
            redis.call('pexpire', lock, lease)
        end
        reply[i + 1] = 2
    end
end
return reply
