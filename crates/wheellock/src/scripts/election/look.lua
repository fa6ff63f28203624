-- Returns the current leader.
--
-- KEYS[1]  the lock that elects the leader: a hash, holder -> hold count
-- ARGV[1]  common part of the names of the lock's other keys, all in the lock's slot
--
-- Returns the holder, the token of its grant, its announcement and the remaining milliseconds of its lease. The token
-- is 0 if it is not known. Returns nil if there is no leader. Returns the error WRONGTYPE if the key has other data or
-- another kind of lock.
local held, holder = holders_of(KEYS[1])
if held.err then
    return held
end
if not holder then
    return nil
end
-- The announcement of an earlier leader does not count for this one.
local leader = ARGV[1] .. ':wheellock_leader'
local said = redis.call('get', leader)
if not said then
    -- While a cluster moves the slot, a missing key may still be on the other node. The importing node then refuses
    -- this command for both keys, and the script ends.
    redis.call('exists', KEYS[1], leader)
    said = ''
end
local token, text = '', ''
if string.sub(said, 1, #holder + 1) == holder .. ' ' then
    token, text = string.match(said, '^%S+ (%d+) (.*)$')
else
    -- This leader has announced nothing, as a leader with Redisson. The latest token is its own.
    local counter = 'redisson_lock_token:' .. ARGV[1]
    token = redis.call('get', counter)
    if not token then
        -- The counter of the tokens may be on the other node, too.
        redis.call('exists', KEYS[1], counter)
    end
end
return {holder, token or '0', text or '', redis.call('pttl', KEYS[1])}
