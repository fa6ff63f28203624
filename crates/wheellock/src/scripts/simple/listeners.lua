-- Says how many listen to a lock's releases, as long as this holder has the lock.
--
-- KEYS[1]  the lock
-- ARGV[1]  its channel; not a key, because a user's key patterns need not cover it
-- ARGV[2]  holder
-- ARGV[3]  PUBLISH or SPUBLISH: how they listen
--
-- Returns how many, or nil (this holder does not hold it). Nothing is changed.
local token = redis.pcall('get', KEYS[1])
if type(token) == 'table' and not string.find(token.err, 'WRONGTYPE', 1, true) then
    return token
end
if token ~= ARGV[2] then
    return nil
end
return redis.call('pubsub', ARGV[3] == 'SPUBLISH' and 'shardnumsub' or 'numsub', ARGV[1])[2]
