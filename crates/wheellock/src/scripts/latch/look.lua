-- Says how often a latch is still to be counted down, and when the last one of this name ended.
--
-- KEYS[1]  the latch: a number, how often it is to be counted down
-- ARGV[1]  what the keys that belong to the latch have in common, in its slot
--
-- Returns both: 0 if there is no latch; and in microseconds since 1970, 0 if that is not known. The error WRONGTYPE if there is no
-- number under the name.
local key = ARGV[1] .. ':wheellock_latch'
local ended = redis.call('get', key)
if number and not ended then
    -- Where a cluster's slot moves, the node that it goes to refuses to say this of both while one may not have come.
    redis.call('exists', KEYS[1], key)
end
return { number or 0, ended or '0' }
