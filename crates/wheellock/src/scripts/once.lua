-- For scripts that would not be idempotent by themselves: a request is answered from memory if it comes again.
local request = ARGV[2] .. ':wheellock_request:' .. ARGV[3]

-- What this very request was answered with before; nil if it comes for the first time. Its caller has gone on to later ones if
-- the memory is of such a one: then nobody waits for the answer, and it must not have an effect any more.
local function known()
    local serial, answer = string.match(redis.call('get', request) or '', '^(%d+) (-?%d+)$')
    if not serial or tonumber(serial) < tonumber(ARGV[4]) then
        return nil
    end
    return tonumber(answer)
end

-- Remembers the answer for as long as the request may come again.
local function answer(number)
    redis.call('set', request, ARGV[4] .. ' ' .. string.format('%.0f', number), 'px', ARGV[5])
    return number
end
