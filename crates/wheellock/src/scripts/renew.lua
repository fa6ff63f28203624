-- Extends many leases at once.
--
-- KEYS     locks
-- ARGV     for each lock: lease in milliseconds, holder
--
-- Returns for each lock 1 (extended) or 0 (the holder does not hold it; it is never created anew).
local extended = {}
for i, lock in ipairs(KEYS) do
    if redis.call('hexists', lock, ARGV[2 * i]) == 1 then
        redis.call('pexpire', lock, ARGV[2 * i - 1])
        extended[i] = 1
    else
        extended[i] = 0
    end
end
return extended
