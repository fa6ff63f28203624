-- Describes the locks among many keys. Changes nothing. The cost of a key that is not a lock is two commands.
--
-- ARGV[1]  maximum number of holders of each lock in the reply
-- ARGV     any keys; they are no KEYS, because the caller does not know whether they are locks
--
-- Returns for each lock: the place of its key, its kind, the number of its waiters or -1, the number of its holders, and a
-- list. The list has three entries for each holder: the holder, its hold count, and the remaining milliseconds of its lease,
-- which are -1 if the lease has no end.
--
-- Only the shape of the data tells a lock. So a token that another library wrote is not listed.
local most = tonumber(ARGV[1])
local uuid = '^%x%x%x%x%x%x%x%x%-%x%x%x%x%-%x%x%x%x%-%x%x%x%x%-%x%x%x%x%x%x%x%x%x%x%x%x:%-?%d+'
local call, try = redis.call, redis.pcall
local reply = {}

-- Returns the part of the names that a lock's keys have in common.
local function tag_of(key)
    return string.find(key, '{', 1, true) and key or '{' .. key .. '}'
end

local function exists(key)
    return try('exists', key) == 1
end

local function add(place, kind, waiters, count, holders)
    for _, part in ipairs({place, kind, waiters, count, holders}) do
        reply[#reply + 1] = part
    end
end

local function hash(place, key)
    local found = try('hscan', key, '0')
    -- A hash with too many fields for one reply is not a lock with one holder.
    local mode = try('hget', key, 'mode')
    local fields = found[2]
    if found.err or #fields == 0 or (found[1] ~= '0' and mode ~= 'read') then
        return
    end
    local left, holders, count = call('pttl', key), {}, 0
    for i = 1, #fields, 2 do
        local field, holds = fields[i], fields[i + 1]
        if field ~= 'mode' or not mode then
            if not (string.find(field, uuid) and string.find(holds, '^[1-9]%d*$')) then
                return
            end
            count = count + 1
            if count <= most then
                holders[#holders + 1] = (string.gsub(field, ':write$', ''))
                holders[#holders + 1] = tonumber(holds)
                holders[#holders + 1] = left
            end
        end
    end
    local tag, waiters = tag_of(key), -1
    local kind = mode == 'read' and 'read' or mode == 'write' and 'write' or 'lock'
    if kind == 'lock' and exists('redisson_lock_token:' .. tag) then
        kind = 'fenced_lock'
    elseif kind == 'lock' and exists('redisson_lock_queue:' .. tag) then
        kind, waiters = 'fair_lock', call('llen', 'redisson_lock_queue:' .. tag)
    end
    if mode then
        count = math.max(count, call('hlen', key) - 1)
    end
    add(place, kind, waiters, count, holders)
end

local function text(place, key)
    local left = try('pttl', key)
    if type(left) ~= 'number' or left < 0 then
        return
    end
    local token = try('getrange', key, '0', '80')
    if type(token) == 'string' and string.find(token, uuid .. '$') then
        add(place, 'simple_lock', -1, 1, {token, 1, left})
    end
end

local function permits(place, key)
    local count = try('zcard', key)
    local semaphore = string.match(key, '^(.*):timeout$')
    if type(count) == 'number' and semaphore and exists(string.match(semaphore, '^{(.*)}$') or semaphore) then
        add(place, 'permit_semaphore', -1, count, {})
    end
end

local shapes = {hash = hash, string = text, zset = permits}
for place = 1, #ARGV - 1 do
    local key = ARGV[place + 1]
    local kind = try('type', key)
    local shape = type(kind) == 'table' and shapes[kind.ok]
    if shape then
        shape(place, key)
    end
end
return reply
