-- Says who holds a lock. Changes nothing.
--
-- KEYS[1]  the lock: a hash, holder -> hold count
-- ARGV[1]  how many holders to say at most
--
-- Returns how many there are, then for each that is said: holder, hold count, and the remaining milliseconds of its lease, -1 if
-- that has no end; the error WRONGTYPE if other data or another kind of lock is under the name.
local lock, most = KEYS[1], tonumber(ARGV[1])
local found = redis.pcall('hscan', lock, '0', 'count', most)
if found.err then
    return found
end
-- Only a read-write lock has this field.
if redis.call('hexists', lock, 'mode') == 1 then
    return redis.error_reply('WRONGTYPE a read-write lock is under this name')
end
local holders, left = found[2], redis.call('pttl', lock)
local reply = {redis.call('hlen', lock)}
for i = 1, math.min(#holders, 2 * most), 2 do
    reply[#reply + 1] = holders[i]
    reply[#reply + 1] = tonumber(holders[i + 1]) or 0
    reply[#reply + 1] = left
end
return reply
