-- Takes one hold of a lock, or says how long the present holder's lease still runs.
--
-- KEYS[1]  the lock: a hash, holder -> hold count
-- ARGV[1]  lease in milliseconds
-- ARGV[2]  holder
-- ARGV[3]  the holder's hold count once this call has succeeded
--
-- Returns nil (the lock was free), AGAIN (the holder held it already) or the present lease's remaining milliseconds; the
-- error WRONGTYPE, with nothing changed, if other data or another kind of lock is under the name.
--
-- The count is set, not incremented: a call that is repeated because its reply was lost counts once.
if redis.call('exists', KEYS[1]) == 0 then
    redis.call('hset', KEYS[1], ARGV[2], '1')
    redis.call('pexpire', KEYS[1], ARGV[1])
    return nil
end
local held = holders_of(KEYS[1])
if held.err then
    return held
end
if held[ARGV[2]] then
    redis.call('hset', KEYS[1], ARGV[2], ARGV[3])
    -- An inner hold with a short lease must not shorten the outer one's.
    if redis.call('pttl', KEYS[1]) < tonumber(ARGV[1]) then
        redis.call('pexpire', KEYS[1], ARGV[1])
    end
    return redis.status_reply('AGAIN')
end
return redis.call('pttl', KEYS[1])
