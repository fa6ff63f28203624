-- Removes a process from the fleet of a server. The process holds no locks any more.
--
-- KEYS[1]  the fleet
-- ARGV[1]  the process
redis.call('zrem', KEYS[1] .. ':roster', ARGV[1])
redis.call('srem', KEYS[1] .. ':checked_in', ARGV[1])
return redis.status_reply('OK')
