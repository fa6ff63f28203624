-- Takes one hold of a lock as the kind's own script does it, which stands where `kind.rs` finds %acquire. For a waiter, which learns
-- from a refusal how many processes wait for the next release.
--
-- KEYS[1]  the lock
-- ARGV     what the kind's own script takes; then the lock's channel, which is not a key; then NUMSUB or SHARDNUMSUB
--
-- Returns what the kind's own script returns; instead of the remaining milliseconds alone, these and the number of listeners, 0 if
-- the user may not ask for it.
local function acquire(KEYS, ARGV)
%acquire
end

local said = acquire(KEYS, ARGV)
if type(said) ~= 'number' then
    return said
end
local counted = redis.pcall('pubsub', ARGV[#ARGV], ARGV[#ARGV - 1])
return {said, tonumber(counted[2]) or 0}
