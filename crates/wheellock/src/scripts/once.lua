-- For scripts that would not be idempotent by themselves: a request is answered from memory if it comes again.
local request = ARGV[2] .. ':wheellock_request:' .. ARGV[3]

-- It ends here with the answer that it was given before. So does one that is late: if its caller has gone on to later ones, it must not
-- have an effect any more, and nobody waits for what it is told.
local before = redis.call('get', request)
if not before then
    -- Where a cluster's slot moves, the node that it goes to refuses to say this of both while one may not have come.
    redis.call('exists', KEYS[1], request)
end
local serial, known = string.match(before or '', '^(%d+) (-?%d+)$')
if serial and tonumber(serial) >= tonumber(ARGV[4]) then
    return tonumber(known)
end

-- Remembers the answer for as long as the request may come again.
local function answer(number)
    redis.call('set', request, ARGV[4] .. ' ' .. string.format('%.0f', number), 'px', ARGV[5])
    return number
end
