-- Returns whether one side of a read-write lock is held.
--
-- KEYS[1]  the lock
-- ARGV[1]  `read` or `write`: the side
--
-- Returns 1 or 0. Returns the error WRONGTYPE if the key is not a hash.
local mode = redis.call('hget', KEYS[1], 'mode')
if mode == ARGV[1] then
    return 1
end
-- A writer may also read. Then the hash has a field beside `mode` and the writer's field.
return ARGV[1] == 'read' and mode == 'write' and redis.call('hlen', KEYS[1]) > 2 and 1 or 0
