-- Says how many listen to a lock's releases, as long as this holder has the lock.
--
-- KEYS[1]  the lock
-- ARGV[1]  its channel; not a key, because a user's key patterns need not cover it
-- ARGV[2]  holder
-- ARGV[3]  PUBLISH or SPUBLISH: how they listen
--
-- Returns how many, or nil (this holder does not hold it). Nothing is changed.
local held = redis.pcall('hexists', KEYS[1], ARGV[2])
if type(held) ~= 'number' and not string.find(held.err, 'WRONGTYPE', 1, true) then
    return held
end
if held ~= 1 then
    return nil
end
return redis.call('pubsub', ARGV[3] == 'SPUBLISH' and 'shardnumsub' or 'numsub', ARGV[1])[2]
