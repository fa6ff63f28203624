-- Releases a lock that the tasks of one process hand over. Also finds contenders that no message reaches.
--
-- The module `kind` replaces %release by the kind's own release.
--
-- KEYS[1]  the lock
-- ARGV     the arguments of the kind's own release; then:
--          common part of the names of all keys that belong to the lock, in the lock's slot
--          0: the process polls again at once; 1: it leaves the lock free for a while; 2: as 1, but without a message
--
-- Returns the reply of that release, and then 1 if the script found such contenders, or 0. Returns only the reply of
-- that release if the lock was not released. Such contenders have left a mark, or they wait in the queue of a fair lock
-- of this name. If the process leaves the lock free, the script notifies the first waiter of that queue.
local args = {unpack(ARGV, 1, #ARGV - 2)}
local tag, opening = ARGV[#ARGV - 1], ARGV[#ARGV]
if opening == '2' then
    args[4] = ''
end

local function release(KEYS, ARGV)
%release
end

local released = release(KEYS, args)
if type(released) ~= 'number' or released == 0 then
    return released
end
local wanted = redis.pcall('exists', tag .. ':wheellock_poller') == 1
local first = redis.pcall('lindex', 'redisson_lock_queue:' .. tag, '0')
if type(first) == 'string' then
    wanted = true
    if opening ~= '0' then
        redis.pcall(ARGV[4], ARGV[1] .. ':' .. first, '0')
    end
end
-- A release without a message counts as one without receivers. With -1 the caller would assume refused messages.
return {math.max(released, opening == '2' and 1 or released), wanted and 1 or 0}
