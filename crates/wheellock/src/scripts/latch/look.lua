-- Returns the remaining count of a latch, and when the last latch of this name ended.
--
-- KEYS[1]  the latch: a number, the remaining count
-- ARGV[1]  common part of the names of the latch's other keys, all in the latch's slot
--
-- Returns the count, or 0 if there is no latch. Then follows the end in microseconds since 1970, or 0 if it is not
-- known. Returns the error WRONGTYPE if the key has other data.
local key = ARGV[1] .. ':wheellock_latch'
local ended = redis.call('get', key)
if number and not ended then
    -- While a cluster moves the slot, a missing key may still be on the other node. The importing node then refuses
    -- this command for both keys, and the script ends.
    redis.call('exists', KEYS[1], key)
end
return { number or 0, ended or '0' }
