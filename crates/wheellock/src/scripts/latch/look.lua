-- Says how often a latch is still to be counted down, and when the last one of this name ended.
--
-- KEYS[1]  the latch: a number, how often it is to be counted down
-- ARGV[1]  what the keys that belong to the latch have in common, in its slot
--
-- Returns both: 0 if there is no latch; and in microseconds since 1970, 0 if that is not known. The error WRONGTYPE if there is no
-- number under the name.
local ended = redis.call('get', ARGV[1] .. ':wheellock_latch') or '0'
return { number or 0, ended }
