-- Returns the permissions of a fleet that the present user lacks. Accesses no key.
--
-- ARGV[1]  the fleet
--
-- Returns rules for `ACL SETUSER`, such as `+wait`. Returns none if the server cannot tell (before 7.0).
local fleet = ARGV[1]
local roster, checked_in = fleet .. ':roster', fleet .. ':checked_in'
local missing = {}
if not redis.acl_check_cmd then
    return missing
end
local on_keys = {
    {{'hmget', fleet, 'era'}, {'hset', fleet, 'era', '1'}, {'hdel', fleet, 'start'}},
    {{'exists', roster}, {'zscore', roster, '1'}, {'zadd', roster, '1', '1'}, {'zcard', roster},
        {'zremrangebyscore', roster, '0', '1'}, {'zrem', roster, '1'}},
    {{'del', checked_in}, {'sadd', checked_in, '1'}, {'scard', checked_in}, {'srem', checked_in, '1'}},
}
for _, commands in ipairs(on_keys) do
    local refused = {}
    for _, command in ipairs(commands) do
        if not redis.acl_check_cmd(unpack(command)) then
            refused[#refused + 1] = '+' .. command[1]
        end
    end
    -- The server refuses every command on a key outside of the user's patterns.
    if #refused == #commands then
        return {'~' .. fleet .. '*'}
    end
    for _, rule in ipairs(refused) do
        missing[#missing + 1] = rule
    end
end
for _, command in ipairs({{'time'}, {'info', 'server'}, {'wait', '1', '1'}}) do
    if not redis.acl_check_cmd(unpack(command)) then
        missing[#missing + 1] = '+' .. command[1]
    end
end
return missing
