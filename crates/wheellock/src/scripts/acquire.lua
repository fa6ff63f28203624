-- Acquires one hold of a lock, or returns the remaining milliseconds of the present lease.
--
-- KEYS[1]  the lock: a hash, holder -> hold count
-- ARGV[1]  lease in milliseconds
-- ARGV[2]  holder
-- ARGV[3]  the holder's hold count after this call; a free lock gets the count 1
--
-- Returns nil (the lock was free), AGAIN (the holder had it already) or the remaining milliseconds. These are -1 if the
-- lease has no end. If the key has other data or another kind of lock, the script changes nothing and returns the error
-- WRONGTYPE.
--
-- The script sets the count and does not increment it. So a call counts once, even if the caller repeats it because the
-- reply was lost.
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
    -- A nested hold with a shorter lease must not shorten the lease of the outer hold.
    if redis.call('pttl', KEYS[1]) < tonumber(ARGV[1]) then
        redis.call('pexpire', KEYS[1], ARGV[1])
    end
    return redis.status_reply('AGAIN')
end
return redis.call('pttl', KEYS[1])
