-- Says who holds one side of a read-write lock. Changes nothing.
--
-- KEYS[1]  the lock: a hash with `mode`, and holder -> hold count; a writer's field ends with `:write`
-- ARGV[1]  how many holders to say at most
-- ARGV[2]  `read` or `write`: the side
-- ARGV[3]  what the keys that belong to the lock have in common, in the lock's slot
--
-- Returns how many there are, then for each that is said: holder, hold count, and the remaining milliseconds of its lease, -1 if
-- that has no end; the error WRONGTYPE if what is there is no such lock. Of readers, those that were looked at and whose leases
-- have ended are left out, for they hold nothing; the others count.
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

-- What is left of a reader's longest lease. Each of its holds has one of its own; of very many, the latest are looked at.
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
        -- Where a cluster's slot moves, the node that it goes to refuses to say this of both while one may not have come.
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
    -- Beside the readers there are `mode` and the writer.
    reply[1] = math.max(redis.call('hlen', lock) - (mode == 'write' and 2 or 1) - ended, said)
end
return reply
