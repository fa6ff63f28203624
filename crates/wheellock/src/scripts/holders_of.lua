-- Returns the hold counts in a lock's hash by holder, and the first holder. Returns the error WRONGTYPE if the hash is
-- other data or another kind of lock. A holder is a UUID, a colon and a number. More text may follow behind another
-- colon. A hold count is positive.
local function holders_of(lock)
    local found = redis.pcall('hscan', lock, '0')
    if found.err then
        return found
    end
    -- HSCAN returns a small hash in one reply. A hash with too many fields for that is not a lock.
    local is_lock, counts = found[1] == '0', {}
    local uuid = '^%x%x%x%x%x%x%x%x%-%x%x%x%x%-%x%x%x%x%-%x%x%x%x%-%x%x%x%x%x%x%x%x%x%x%x%x:%-?%d+%f[:%z]'
    for i = 1, #found[2], 2 do
        local holder, count = found[2][i], found[2][i + 1]
        is_lock = is_lock and string.find(holder, uuid) and string.find(count, '^[1-9]%d*$')
        counts[holder] = count
    end
    if not is_lock then
        return redis.error_reply('WRONGTYPE what is under this name is no lock of this kind')
    end
    return counts, found[2][1]
end

