-- Acquires one hold of a read-write lock for writing, or returns the remaining milliseconds of the present leases.
--
-- KEYS[1]  the lock: a hash with `mode`, and holder -> hold count; a writer's field ends with `:write`
-- ARGV[1]  lease in milliseconds
-- ARGV[2]  holder, with `:write`
-- ARGV[3]  the holder's hold count after this call; a free lock gets the count 1
-- ARGV[4]  common part of the names of the lock's other keys, all in the lock's slot
-- ARGV[5]  milliseconds for which later readers yield to this caller if it has to wait; 0 if they do not yield
--
-- Returns nil (the lock was free), AGAIN (the holder wrote already) or the remaining milliseconds. These are -1 if the
-- lease has no end. If the key has other data or another kind of lock, the script changes nothing and returns the error
-- WRONGTYPE. If the holder reads, it would wait for itself. The script then changes nothing and returns the error
-- UPGRADE.
--
-- The script sets the count and does not increment it. So a call counts once, even if the caller repeats it because the
-- reply was lost.
local again, answer = writes_already(KEYS[1], ARGV[2], ARGV[4], ARGV[5])
if again == nil then
    return answer
end
write_hold(KEYS[1], ARGV[2], ARGV[3], ARGV[1], again, answer)
return again and redis.status_reply('AGAIN') or nil
