-- Refreshes a process's entry in the fleet of a server, and drives the grace after a failover. No process is granted a
-- lock in a grace. A grace ends when every known process has written its holds into this server, or when all grants of
-- earlier servers have ended.
--
-- KEYS[1]  the fleet: a hash
-- KEYS[2]  the roster: the last refresh of each process
-- KEYS[3]  the processes that have written their holds, and an empty member
-- ARGV[1]  the process
-- ARGV[2]  longest lease of the fleet in milliseconds
-- ARGV[3]  window of the fleet in milliseconds
-- ARGV[4]  number of replicas
-- ARGV[5]  1 if enough servers have acknowledged a refresh of this process on this server
-- ARGV[6]  1 if all holds of this process are written, 2 if its entry also shows that this server knows all processes
-- ARGV[7]  1 if a server without data may be a new one
-- ARGV[8]  the incarnation to which ARGV[5], ARGV[6] and ARGV[9] apply
-- ARGV[9]  1 if this process knows that the server has no entry of it
-- ARGV[10] time in milliseconds without a refresh after which an entry is removed
--
-- Returns the server's run id, its incarnation, its time in milliseconds, 1 or 0 (the grace is over), 1 or 0 (the
-- entry was there, and no other server can have removed it), the number of processes, the number of those that have
-- checked in, the milliseconds until the grace ends at the latest, or -1, and the number of connected replicas. Returns
-- the three numbers of the fleet if they differ from the process's numbers.
local fleet, process, longest, window = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local roster, checked_in = KEYS[2], KEYS[3]
local call = redis.call
local run_id = string.match(call('info', 'server'), 'run_id:(%x+)')
local replication = call('info', 'replication')
local replication_id = string.match(replication, 'master_replid:(%x+)')
local era, grace, start, witness, was_longest, was_window, replicas, number =
    unpack(call('hmget', fleet, 'era', 'grace', 'start', 'witness', 'longest', 'window', 'replicas', 'number'))
-- A restart changes the run id, and a promotion changes the replication id. Each later grace has a greater number.
-- Otherwise a fleet that leaves a server with its slot, and comes back, would find processes that never use this server
-- again. The number is at least that of the process, because an operator may have removed the hash.
local server = run_id .. ':' .. replication_id .. ':'
local is_here = string.sub(ARGV[8], 1, #server) == server
number = math.max(tonumber(number) or 0, is_here and tonumber(string.sub(ARGV[8], #server + 1)) or 0)
local begins = era ~= server .. number and grace ~= server .. number
if begins and era then
    number = number + 1
end
local incarnation = server .. number
-- A process that has not met this server yet says nothing about it.
local has_met = ARGV[8] == incarnation
local is_counted = ARGV[5] == '1' and has_met
local check_in = has_met and ARGV[6] or '0'
local time = call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local refreshed = call('zscore', roster, process)
-- An older entry may be a copy of one that the earlier primary has removed.
local was_known = refreshed and now - refreshed <= ARGV[10] - window
-- A backup that reads from the server like a replica has no port. A replica may have two connections during a full sync.
local connected, following, seen, follows = 0, 0, {}, {}
for address, state in string.gmatch(replication, 'slave%d+:(ip=[^,]*,port=[1-9]%d*)([^\r\n]*)') do
    if not seen[address] then
        connected, seen[address] = connected + 1, true
    end
    -- A replica that has sent nothing for a window may be a primary now.
    local lag = string.match(state, 'state=online,.*lag=(%d+)')
    if lag and (lag + 1) * 1000 <= window and not follows[address] then
        following, follows[address] = following + 1, true
    end
end
local all_follow = following >= tonumber(ARGV[4])
-- This removes no entry. A server without memory refuses a script's first write if that write may need memory, but
-- no later write. Without refreshes, all holds would end.
call('zremrangebyscore', roster, '-inf', '-inf')
was_longest, was_window, replicas = tonumber(was_longest), tonumber(was_window), tonumber(replicas)
local differs = was_longest ~= longest or was_window ~= window or replicas ~= tonumber(ARGV[4])
if differs and was_longest and era == incarnation and all_follow then
    -- All processes with the other numbers may have ended without a shutdown.
    local lasts = math.max(ARGV[10], 2 * (was_longest + was_window))
    call('zremrangebyscore', roster, '-inf', now - lasts)
end
local is_empty = call('exists', roster) == 0
if differs and was_longest and not is_empty then
    return {was_longest, was_window, replicas}
elseif differs then
    -- The leases of earlier processes have ended before their entries.
    call('hset', fleet, 'longest', ARGV[2], 'window', ARGV[3], 'replicas', ARGV[4])
end
if is_empty and not era and ARGV[7] == '1' then
    era = incarnation
    call('hset', fleet, 'era', era, 'number', number)
end
-- A process adds an entry only when it knows that its entry is missing. Otherwise a process that missed the reply would
-- find the entry of its own refresh, and take it for the earlier entry.
local is_entered = was_known or has_met and ARGV[9] == '1'
if is_entered then
    call('zadd', roster, now, process)
else
    -- A late refresh of a process that has left must not check in for another process.
    check_in = '0'
    -- This changes nothing. A user without the permission learns that at the first refresh.
    call('zadd', roster, 'xx', refreshed or now, process)
end
local left = -1
if era ~= incarnation then
    if begins then
        -- These notes are of an earlier grace.
        call('hdel', fleet, 'start', 'witness')
        call('hset', fleet, 'grace', incarnation, 'number', number)
        call('del', checked_in)
        start, witness = false, false
    end
    -- The time counts from a write that the old server's replicas have acknowledged. From then on, the old server gets
    -- too few acknowledgements for grants.
    if not start and is_counted then
        start = now
        call('hset', fleet, 'start', start)
    end
    if check_in ~= '0' then
        call('sadd', checked_in, process)
    end
    if check_in == '2' then
        witness = '1'
        call('hset', fleet, 'witness', witness)
    end
    -- One percent more, because clocks differ in rate.
    left = start and math.max(0, tonumber(start) + math.ceil((longest + window) * 1.01) - now) or -1
end
-- While a cluster moves the slot, a server refuses a script if one of its keys is missing. This member keeps the set.
call('sadd', checked_in, '')
local members, checked = call('zcard', roster), call('scard', checked_in) - 1
if era ~= incarnation and (left == 0 or witness and checked >= members) then
    era = incarnation
    call('hdel', fleet, 'grace', 'start', 'witness')
    call('hset', fleet, 'era', era)
elseif era == incarnation then
    -- In a grace no entry is removed. Its process may still have holds to write. While a server does not follow this one,
    -- no entry is removed either. The process may be at that server, which has its entry.
    call('zremrangebyscore', roster, '-inf', all_follow and now - ARGV[10] or '-inf')
end
local is_over = era == incarnation and 1 or 0
return {run_id, incarnation, now, is_over, was_known and 1 or 0, members, checked, left, connected}
