-- Writes many held sides of read-write locks into a server that has taken over and may not know them.
--
-- KEYS     the locks: a hash each, with `mode`, and holder -> hold count; a writer's field ends with `:write`
-- ARGV[1]  the fleet
-- ARGV[2]  the server's run id and replication id
-- ARGV     for each lock: lease in milliseconds; holder; hold count; end of the hold by the server's clock, in
--          milliseconds; common part of the names of the lock's other keys
--
-- Returns the server's time (seconds, microseconds). For each lock then follows 1 (the holder holds it for the lease at
-- least) or 0 (nothing was changed). `reclaim.lua` says when a reclaim has an effect. A reader takes the place of a
-- writer, and a writer the place of everybody. One owner may have both sides, and keeps both.
local reply = redis.call('time')
reply[1], reply[2] = tonumber(reply[1]), tonumber(reply[2])
local now = reply[1] * 1000 + math.floor(reply[2] / 1000)
local over = is_grace_over(ARGV[1], ARGV[2])
local call = redis.call

-- Returns true if a hold of this owner excludes the holder with this field.
local function excludes(owner, writes, field)
    if field == owner or field == owner .. ':write' then
        return false
    end
    return writes or string.sub(field, -6) == ':write'
end

for i, lock in ipairs(KEYS) do
    local lease, holder, count, ends, tag = unpack(ARGV, 5 * i - 2, 5 * i + 2)
    lease, count, ends = tonumber(lease), tonumber(count), tonumber(ends)
    local writes = string.sub(holder, -6) == ':write'
    local owner = writes and string.sub(holder, 1, -7) or holder
    local found = redis.pcall('hkeys', lock)
    if found.err and not string.find(found.err, 'WRONGTYPE', 1, true) then
        return found
    end
    local others, has_writer = {}, writes
    for _, field in ipairs(found) do
        if field ~= 'mode' and excludes(owner, writes, field) then
            table.insert(others, field)
        elseif field == owner .. ':write' then
            has_writer = true
        end
    end
    reply[i + 2] = 0
    if over ~= nil and now < ends and not found.err and (#others == 0 or not over) then
        -- A server without memory refuses a script's first write if that write may need memory, but no later write.
        call('hdel', lock, '')
        for _, field in ipairs(others) do
            call('hdel', lock, field)
        end
        call('hset', lock, 'mode', has_writer and 'write' or 'read', holder, count)
        for hold = 1, writes and 0 or math.min(count, 1000) do
            local timeout = tag .. ':' .. holder .. ':rwlock_timeout:' .. hold
            call('set', timeout, '1', 'px', math.max(lease, call('pttl', timeout)))
        end
        if call('pttl', lock) < lease then
            call('pexpire', lock, lease)
        end
        reply[i + 2] = 1
    end
end
return reply
