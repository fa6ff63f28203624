-- Has the server remember for longer what holders have of semaphores, or looks for how long it will.
--
-- KEYS     semaphores
-- ARGV     for each: for how long in milliseconds, 0 to leave it as it is; holder; what the keys that belong to the semaphore
--          have in common
--
-- Returns the server's clock (seconds, microseconds), then for each semaphore 0 (the holder has nothing), or else 1 (remembered
-- for longer); where it was left as it is the remaining milliseconds instead, at least 1, or -1 if it has no end.
local reply = redis.call('time')
reply[1], reply[2] = tonumber(reply[1]), tonumber(reply[2])
for i = 1, #KEYS do
    local lease, has = ARGV[3 * i - 2], ARGV[3 * i] .. ':wheellock_permits:' .. ARGV[3 * i - 1]
    local had = redis.call('get', has)
    if not had then
        -- Where a cluster's slot moves, the node that it goes to refuses to say this of both while one may not have come.
        redis.call('exists', KEYS[i], has)
    end
    if tonumber(had or 0) == 0 then
        reply[i + 2] = 0
    elseif lease ~= '0' then
        redis.call('pexpire', has, lease)
        reply[i + 2] = 1
    else
        local left = redis.call('pttl', has)
        reply[i + 2] = left == 0 and 1 or left
    end
end
return reply
