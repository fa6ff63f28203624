-- Returns the holders of one side of a read-write lock. Changes nothing.
--
-- KEYS[1]  the lock: a hash with `mode`, and holder -> hold count; a writer's field ends with `:write`
-- ARGV[1]  maximum number of holders in the reply
-- ARGV[2]  `read` or `write`: the side
-- ARGV[3]  common part of the names of the lock's other keys, all in the lock's slot
--
-- Returns the number of all holders. For each holder in the reply then follow the holder, its hold count and the
-- remaining milliseconds of its lease. These are -1 if the lease has no end. If the key is not a read-write lock, the
-- script returns the error WRONGTYPE. Readers whose leases have ended do not hold the lock. The script leaves them out
-- as far as it examines them. The number includes all other readers.
local lock, most, side, tag = KEYS[1], tonumber(ARGV[1]), ARGV[2], ARGV[3]
local mode = redis.pcall('hget', lock, 'mode')
if type(mode) == 'table' then
    return mode
end
if mode ~= 'read' and mode ~= 'write' then
    if redis.call('exists', lock) == 1 then
        return redis.error_reply('WRONGTYPE what is under this name is no read-write lock')
    end
    return {0}
end
if side == 'write' and mode ~= 'write' then
    return {0}
end
local left = redis.call('pttl', lock)

-- Returns a reader's longest remaining lease. Each of its holds has a separate lease. The function examines the latest
-- 100 holds.
local function lease_of(holder, count)
    local longest = 0
    for hold = count, math.max(count - 99, 1), -1 do
        local own = redis.call('pttl', tag .. ':' .. holder .. ':rwlock_timeout:' .. hold)
        if own == -1 then
            return left
        end
        longest = math.max(longest, own)
    end
    if longest <= 0 then
        -- While a cluster moves the slot, a missing key may still be on the other node. The importing node then refuses
        -- this command for both keys, and the script ends.
        redis.call('exists', lock, tag .. ':' .. holder .. ':rwlock_timeout:' .. count)
    end
    return left >= 0 and math.min(longest, left) or longest
end

local reply, seen, cursor, rounds = {0}, {}, '0', 0
local said, ended = 0, 0
repeat
    local found = redis.call('hscan', lock, cursor, 'count', most)
    cursor, rounds = found[1], rounds + 1
    for i = 1, #found[2], 2 do
        local field, count = found[2][i], tonumber(found[2][i + 1]) or 0
        local writes = string.sub(field, -6) == ':write'
        if said < most and field ~= 'mode' and writes == (side == 'write') and not seen[field] then
            seen[field] = true
            local own = writes and left or lease_of(field, count)
            if own == 0 and not writes then
                ended = ended + 1
            else
                said = said + 1
                reply[#reply + 1] = writes and string.sub(field, 1, -7) or field
                reply[#reply + 1] = count
                reply[#reply + 1] = own
            end
        end
    end
until said == most or cursor == '0' or rounds == 100
if side == 'write' then
    reply[1] = said
else
    -- The hash has `mode` and the writer's field beside the readers.
    reply[1] = math.max(redis.call('hlen', lock) - (mode == 'write' and 2 or 1) - ended, said)
end
return reply
