-- Takes and gives back for several callers who know nothing of each other, each as the kind's own two scripts do it: those stand where
-- `kind.rs` finds %acquire and %release, and how many arguments they take where it finds %takes and %gives; where it finds %many, what the
-- kind does faster for neighbours who want the same of one lock, if there is such a thing.
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

%many

local reply, at, alone = {}, 1, 1

-- Answers the next call by what a function returns, or the next few.
local function answer(calls, args, made, said)
    if not made and type(said) ~= 'table' then
        -- Up to Redis 7.0 an error that a command raised is its text alone. 7.0 begins it with the code, by which callers know what to
        -- wait out.
        said = redis.error_reply(said:find('^%u+ ') and said or 'ERR Error running script: ' .. said)
    end
    for _ = 1, calls do
        reply[#reply + 1] = said or false
    end
    at = at + calls * (args + 1)
end

while #reply < #KEYS do
    local i, gives = #reply + 1, ARGV[at]
    local part, args = acquire, %takes
    if gives == '2' then
        part, args = release, %gives
    end
    answer(1, args, pcall(part, {KEYS[i]}, {unpack(ARGV, at + 1, at + args)}))
    if many and i >= alone then
        -- How the first one fared says what to try with its neighbours.
        local calls, from = {}, at
        while KEYS[i + 1 + #calls] == KEYS[i] and ARGV[from] == gives do
            calls[#calls + 1] = {unpack(ARGV, from + 1, from + args)}
            from = from + args + 1
        end
        local made, said = true, nil
        if #calls > 1 then
            made, said = pcall(many, gives == '2', KEYS[i], calls)
        end
        if said ~= nil then
            answer(#calls, args, made, said)
        end
        alone = i + #calls + 1
    end
end
return reply
