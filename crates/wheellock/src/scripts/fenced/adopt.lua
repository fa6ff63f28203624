-- Gives a lock to a new holder in place of the owner that a ticket names, as `adopt.lua` does, with a new fencing token.
-- So the resource refuses late requests of the earlier holder.
--
-- KEYS[1]  the lock: a hash, holder -> hold count
-- ARGV[1]  lease in milliseconds
-- ARGV[2]  new holder
-- ARGV[3]  owner that the ticket names
-- ARGV[4]  common part of the names of the lock's other keys, all in the lock's slot
--
-- Returns 1 and the token if the new holder has the lock now, or 2 and the token if it had the lock already. Returns only
-- the remaining milliseconds of the present lease, or -2, if that owner does not hold the lock alone and once.
local lock, holder, owner = KEYS[1], ARGV[2], ARGV[3]
local again = redis.call('hexists', lock, holder) == 1
if not again and (redis.call('hlen', lock) ~= 1 or redis.call('hget', lock, owner) ~= '1') then
    return redis.call('pttl', lock)
end
local token = token_of_grant(lock, ARGV[4], again)
if type(token) == 'table' then
    return token
end
if not again then
    -- HDEL comes first, because a server without memory refuses HSET as a script's first write.
    redis.call('hdel', lock, owner)
    redis.call('hset', lock, holder, '1')
end
redis.call('pexpire', lock, ARGV[1])
return {again and 2 or 1, token}
