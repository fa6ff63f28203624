-- Says who leads.
--
-- KEYS[1]  the lock by which the leader is elected: a hash, holder -> hold count
-- ARGV[1]  what the keys that belong to the lock have in common, in the lock's slot
--
-- Returns the holder, the token of its grant (0 if nobody knows it), what it has announced and for how many milliseconds its lease
-- still runs; nil if nobody leads; the error WRONGTYPE if other data or another kind of lock is under the name.
local held, holder = holders_of(KEYS[1])
if held.err then
    return held
end
if not holder then
    return nil
end
-- What an earlier leader said is none of this one's.
local leader = ARGV[1] .. ':wheellock_leader'
local said = redis.call('get', leader)
if not said then
    -- Where a cluster's slot moves, the node that it goes to refuses to say this of both while one may not have come.
    redis.call('exists', KEYS[1], leader)
    said = ''
end
local token, text = '', ''
if string.sub(said, 1, #holder + 1) == holder .. ' ' then
    token, text = string.match(said, '^%S+ (%d+) (.*)$')
else
    -- One that announces nothing, as Redisson's: the latest token is its own.
    local counter = 'redisson_lock_token:' .. ARGV[1]
    token = redis.call('get', counter)
    if not token then
        -- The same of these.
        redis.call('exists', KEYS[1], counter)
    end
end
return {holder, token or '0', text or '', redis.call('pttl', KEYS[1])}
