-- Makes the script behind it take effect once: a repeated request gets the stored reply of the first one. Such a script
-- would not be idempotent by itself. Its own head lists the arguments. It returns `answer(number)`.
local request = ARGV[2] .. ':wheellock_request:' .. ARGV[3]

-- A repeated request ends here with its first reply. A late request ends here, too, if a later request has used its
-- slot. It must not take effect any more, and no caller waits for its reply.
local before = redis.call('get', request)
if not before then
    -- While a cluster moves the slot, a missing key may still be on the other node. The importing node then refuses
    -- this command for both keys, and the script ends.
    redis.call('exists', KEYS[1], request)
end
local serial, known = string.match(before or '', '^(%d+) (-?%d+)$')
if serial and tonumber(serial) >= tonumber(ARGV[4]) then
    return tonumber(known)
end

-- Returns the reply, and stores it for as long as the request may be repeated.
local function answer(number)
    redis.call('set', request, ARGV[4] .. ' ' .. string.format('%.0f', number), 'px', ARGV[5])
    return number
end
