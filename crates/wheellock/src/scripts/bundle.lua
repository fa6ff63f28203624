-- Runs acquires and releases of independent callers, each as the kind's own script does.
--
-- The module `kind` replaces the placeholders. %acquire and %release become the kind's own scripts. Their numbers of
-- arguments are %takes and %gives. %many becomes the kind's faster function for neighbouring calls that want the same
-- of one lock. Without such a function it becomes `local many`.
--
-- KEYS     the lock of each call
-- ARGV     for each call: 1 and the arguments of the acquiring script, or 2 and the arguments of the releasing script
--
-- Returns for each call the reply of that script, its error included. The error of one call does not stop the others.
local redis, pcall, unpack = redis, pcall, unpack

local function acquire(KEYS, ARGV)
%acquire
end

local function release(KEYS, ARGV)
%release
end

%many

local reply, at, alone = {}, 1, 1

-- Adds the reply of the next `calls` calls, which have `args` arguments each. `made` and `said` are what `pcall`
-- returns: success, and the reply or the error.
local function answer(calls, args, made, said)
    if not made and type(said) ~= 'table' then
        -- Up to Redis 7.0, `pcall` returns the error of a command as text. In 7.0 this text begins with the error code.
        -- Callers need the code, because they wait until errors such as OOM are over.
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
        -- The first call of several runs by itself. Its effect on the lock shows what `many` may do for the neighbours.
        local calls, from = {}, at
        while KEYS[i + 1 + #calls] == KEYS[i] and ARGV[from] == gives do
            calls[#calls + 1] = {unpack(ARGV, from + 1, from + args)}
            from = from + args + 1
        end
        local made, said = true, nil
        if #calls > 1 then
            made, said = pcall(many, gives == '2', KEYS[i], calls)
        end
        -- If `many` returns nil, each of these calls runs by itself.
        if said ~= nil then
            answer(#calls, args, made, said)
        end
        alone = i + #calls + 1
    end
end
return reply
