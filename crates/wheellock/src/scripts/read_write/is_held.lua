-- Whether a read-write lock is held.
--
-- KEYS[1]  the lock
-- ARGV[1]  `read` or `write`: in which way
--
-- Returns 1 or 0; the error WRONGTYPE if what is there is no hash.
local mode = redis.call('hget', KEYS[1], 'mode')
if mode == ARGV[1] then
    return 1
end
-- A writer may read as well: then there is a field beside the mode's and the writer's.
return ARGV[1] == 'read' and mode == 'write' and redis.call('hlen', KEYS[1]) > 2 and 1 or 0
