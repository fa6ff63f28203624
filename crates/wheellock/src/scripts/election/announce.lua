-- Says what the leader has to say: behind `once.lua`.
--
-- KEYS[1]  the lock by which the leader is elected: a hash, holder -> hold count
-- ARGV[1]  its channel
-- ARGV[2]  what the keys that belong to the lock have in common, in the lock's slot
-- ARGV[3]  where the request is remembered, below that
-- ARGV[4]  its number there
-- ARGV[5]  for how many milliseconds
-- ARGV[6]  PUBLISH or SPUBLISH: how observers listen
-- ARGV[7]  holder, token and text, with spaces between them
--
-- Returns 1, or 0 if this holder does not hold the lock; the error WRONGTYPE, with nothing changed, if other data is there.
local held = redis.pcall('hexists', KEYS[1], string.match(ARGV[7], '^%S+'))
if type(held) ~= 'number' then
    return held
end
if held == 0 then
    return answer(0)
end
local leader = ARGV[2] .. ':wheellock_leader'
-- Where a cluster's slot moves, the node that it goes to refuses to say this of both while one may not have come.
redis.call('exists', KEYS[1], leader)
redis.call('set', leader, ARGV[7])
-- A user without the channel leads all the same; observers then find out by asking.
redis.pcall(ARGV[6], 'wheellock_election:' .. ARGV[2], '1')
return answer(1)
