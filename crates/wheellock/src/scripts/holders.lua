-- Says who holds a lock. Changes nothing.
--
-- KEYS[1]  the lock: a hash, holder -> hold count
-- ARGV[1]  how many holders to say at most
--
-- Returns how many there are, then for each that is said: holder, hold count, and the remaining milliseconds of its lease, -1 if
-- that has no end; the error WRONGTYPE if other data or another kind of lock is under the name.
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
