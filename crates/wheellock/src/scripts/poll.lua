-- Acquires one hold of a lock for a waiter, as the kind's own script does. A refused waiter also learns how many
-- processes wait for the next release.
--
-- The module `kind` replaces %acquire by the kind's own script.
--
-- KEYS[1]  the lock
-- ARGV     the arguments of the kind's own script; then the lock's channel, which is not a key; then NUMSUB or
--          SHARDNUMSUB
--
-- Returns the reply of the kind's own script. If this reply is a number of milliseconds, returns a list of it and the
-- number of listeners. The latter is 0 if the user may not count listeners.
local function acquire(KEYS, ARGV)
%acquire
end

local said = acquire(KEYS, ARGV)
if type(said) ~= 'number' then
    return said
end
local counted = redis.pcall('pubsub', ARGV[#ARGV], ARGV[#ARGV - 1])
return {said, tonumber(counted[2]) or 0}
