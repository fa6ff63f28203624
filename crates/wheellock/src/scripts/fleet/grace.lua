-- Returns true if the grace of this server is over, false if it is not, or nil if `incarnation` is not the server's.
-- Then a reclaim has no effect.
local function is_grace_over(fleet, incarnation)
    local era, grace = unpack(redis.call('hmget', fleet, 'era', 'grace'))
    if era == incarnation then
        return true
    elseif grace == incarnation then
        return false
    end
end

