-- Says what the present user may not do, of what locks need. Touches no key.
--
-- ARGV[1]  a lock's name
-- ARGV[2]  its channel
-- ARGV[3]  PUBLISH or SPUBLISH
-- ARGV[4]  SUBSCRIBE or SSUBSCRIBE
--
-- Returns the names of the commands that would be refused; `unknown` alone if the server cannot tell (before 7.0).
if not redis.acl_check_cmd then
    return {'unknown'}
end
local lock, channel = ARGV[1], ARGV[2]
local needed = {
    {'hexists', lock, 'holder'}, {'hget', lock, 'holder'}, {'hset', lock, 'holder', '1'}, {'exists', lock},
    {'pttl', lock}, {'pexpire', lock, '1'}, {'hdel', lock, 'holder'}, {'hlen', lock}, {'hscan', lock, '0'}, {'del', lock},
    -- For contenders that poll.
    {'set', '{' .. lock .. '}:wheellock_poller', '1'}, {'lindex', 'redisson_lock_queue:{' .. lock .. '}', '0'},
}
local refused = {}
for _, command in ipairs(needed) do
    if not redis.acl_check_cmd(unpack(command)) then
        refused[#refused + 1] = command[1]
    end
end
-- Where everything is refused it is the name that is out of bounds, and other names may not be.
if #refused == #needed then
    refused = {}
end
for _, command in ipairs({{ARGV[3], channel, '0'}, {ARGV[4], channel}, {'time'}}) do
    if not redis.acl_check_cmd(unpack(command)) then
        refused[#refused + 1] = command[1]
    end
end
return refused
