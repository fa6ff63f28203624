-- Acquires one hold of each of several locks, or of none of them.
--
-- KEYS     the locks
-- ARGV     for each lock: lease in milliseconds; holder; the holder's hold count after this call (a free lock gets the
--          count 1)
--
-- Returns 1 if the script acquired all locks. For each lock then follows 1 (it was free) or 2 (the holder had it
-- already). Otherwise the script changes nothing and reports the first lock that it cannot acquire. Its position counts
-- from 1:
-- - 0, the position and the remaining milliseconds of the lease, if another holder has this lock
-- - -1 and the position, if the key has other data or another kind of lock
--
-- The script acquires each lock as `acquire.lua` does. A repeated call counts once here, too.
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
