-- Returns the commands for locks that the present user may not run or that the server does not know. Accesses no key.
--
-- ARGV[1]  a lock's name
-- ARGV[2]  its channel
-- ARGV[3]  PUBLISH or SPUBLISH
-- ARGV[4]  SUBSCRIBE or SSUBSCRIBE
-- ARGV[5]  and further: every other command that a script runs
--
-- Returns the names of the commands that the server would refuse. A `-` stands before commands that the server does not
-- know, or fails to run in a script. The reply has `unknown` if the server cannot tell what the user may do (before
-- 7.0).
local lock, channel, publish, subscribe = unpack(ARGV)
local refused, missing = {}, {}

-- Records a command if the server does not know it. A server checks first whether it knows a command, and then the
-- number of arguments. That number is wrong here, so the server never runs the command.
local function look_for(command, ...)
    local said = redis.pcall(command, ...)
    if type(said) == 'table' and said.err and string.find(string.lower(said.err), 'unknown', 1, true) then
        missing[command] = true
        refused[#refused + 1] = '-' .. command
    end
end

for i = 3, #ARGV do
    if ARGV[i] == 'time' then
        look_for('time', 'with', 'arguments')
    else
        look_for(ARGV[i])
    end
end

local function may(command, ...)
    return missing[command] or redis.acl_check_cmd(command, ...)
end

if redis.acl_check_cmd then
    local needed = {
        {'hexists', lock, 'holder'}, {'hget', lock, 'holder'}, {'hset', lock, 'holder', '1'}, {'exists', lock},
        {'pttl', lock}, {'pexpire', lock, '1'}, {'hdel', lock, 'holder'}, {'hlen', lock}, {'hscan', lock, '0'}, {'del', lock},
        -- These two commands are for contenders that poll.
        {'set', '{' .. lock .. '}:wheellock_poller', '1'}, {'lindex', 'redisson_lock_queue:{' .. lock .. '}', '0'},
    }
    local locks = {}
    for _, command in ipairs(needed) do
        if not may(unpack(command)) then
            locks[#locks + 1] = command[1]
        end
    end
    -- If the server refuses all of these commands, the name is outside of the user's key patterns. Other names may be
    -- inside, so the commands do not count as refused.
    if #locks < #needed then
        for _, command in ipairs(locks) do
            refused[#refused + 1] = command
        end
    end
    local numsub = publish == 'SPUBLISH' and 'shardnumsub' or 'numsub'
    for _, command in ipairs({{publish, channel, '0'}, {subscribe, channel}, {'time'}, {'pubsub', numsub, channel}}) do
        if not may(unpack(command)) then
            missing[command[1]] = true
            refused[#refused + 1] = command[1] == 'pubsub' and 'pubsub|' .. numsub or command[1]
        end
    end
else
    refused[#refused + 1] = 'unknown'
end
-- Scripts can publish on Redis 7 and Valkey, which report their version here. Other servers have to prove it. The
-- message makes listeners of this lock, if there are any, poll once in vain.
if publish == 'PUBLISH' and not redis.REDIS_VERSION and not missing[publish] and type(redis.pcall(publish, channel, '0')) ~= 'number' then
    refused[#refused + 1] = '-' .. publish
end
return refused
