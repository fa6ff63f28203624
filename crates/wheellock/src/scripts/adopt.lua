-- Gives a lock to a new holder in place of the owner that a ticket names. So the lock is never free in between, and only
-- one ticket's holder gets it.
--
-- KEYS[1]  the lock: a hash, holder -> hold count
-- ARGV[1]  lease in milliseconds
-- ARGV[2]  new holder
-- ARGV[3]  owner that the ticket names
--
-- Returns nil if the new holder has the lock now, or AGAIN if it had the lock already. Returns the remaining milliseconds
-- of the present lease, or -2, if that owner does not hold the lock alone and once. If the key has other data, the script
-- changes nothing and returns the error WRONGTYPE.
local lock, lease, holder, owner = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local again = has_adopted(lock, holder, owner)
if again == nil then
    return redis.call('pttl', lock)
end
adopt(lock, holder, owner, lease, again)
return again and redis.status_reply('AGAIN') or nil
