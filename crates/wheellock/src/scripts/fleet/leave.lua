-- Removes a process from the fleet of a server. The process holds no locks any more.
--
-- KEYS[1]  the fleet's roster
-- KEYS[2]  the processes that have written their holds
-- ARGV[1]  the process
redis.call('zrem', KEYS[1], ARGV[1])
redis.call('srem', KEYS[2], ARGV[1])
return redis.status_reply('OK')
