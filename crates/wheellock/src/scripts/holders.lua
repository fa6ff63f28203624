-- Returns the holders of a lock. Changes nothing.
--
-- KEYS[1]  the lock: a hash, holder -> hold count
-- ARGV[1]  maximum number of holders in the reply
--
-- Returns the number of all holders. For each holder in the reply then follow the holder, its hold count and the
-- remaining milliseconds of its lease. These are -1 if the lease has no end. If the key has other data or another kind
-- of lock, the script returns the error WRONGTYPE.
local lock, most = KEYS[1], tonumber(ARGV[1])
local held = holders_of(lock)
if held.err then
    return held
end
local reply, left = {0}, redis.call('pttl', lock)
for holder, count in pairs(held) do
    reply[1] = reply[1] + 1
    if reply[1] <= most then
        reply[#reply + 1] = holder
        reply[#reply + 1] = tonumber(count)
        reply[#reply + 1] = left
    end
end
return reply
