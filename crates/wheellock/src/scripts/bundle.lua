-- Takes and gives back for several callers who know nothing of each other, each as the kind's own two scripts do it: those stand where
-- `kind.rs` finds %acquire and %release, and how many arguments they take where it finds %takes and %gives.
--
-- KEYS     the lock of each call
-- ARGV     for each call: 1 and what the script that takes is given, or 2 and what the script that gives back is given
--
-- Returns for each call what that script would have returned, its error included: no call keeps the others from being made.
local redis, pcall, unpack = redis, pcall, unpack

local function acquire(KEYS, ARGV)
%acquire
end

local function release(KEYS, ARGV)
%release
end

local reply, at = {}, 1
for i = 1, #KEYS do
    local part, args = acquire, %takes
    if ARGV[at] == '2' then
        part, args = release, %gives
    end
    local made, said = pcall(part, {KEYS[i]}, {unpack(ARGV, at + 1, at + args)})
    at = at + args + 1
    if not made and type(said) ~= 'table' then
        -- Up to Redis 6.2 an error that a command raised is its text alone.
        said = redis.error_reply('ERR Error running script: ' .. said)
    end
    reply[i] = said or false
end
return reply
