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
local lock, lease, holder, owner = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local again = has_adopted(lock, holder, owner)
if again == nil then
    return redis.call('pttl', lock)
end
local token = token_of_grant(lock, ARGV[4], again)
if type(token) == 'table' then
    return token
end
adopt(lock, holder, owner, lease, again)
return {again and 2 or 1, token}
