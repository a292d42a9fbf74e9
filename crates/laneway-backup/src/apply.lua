-- apply(epoch, from, to, ops): brings the copy of a shard from one place to the next, or refuses.
-- KEYS: meta, row, due, with, workers
-- ARGV: prefix, epoch, identity, from, to, is_whole, count, fields of the head and their number, ops
local meta, row, due, with, workers = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local at = ARGV[1] .. 'at:'
local epoch, identity, from, to, is_whole = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6] == '1'

-- What is there may be of another kind, written by another program: then it counts as nothing.
local function ask(...)
    local answer = redis.pcall(...)
    if type(answer) == 'table' and answer.err then
        return nil
    end
    return answer
end

local function handed()
    local sum, names = 0, ask('SMEMBERS', workers)
    for _, worker in ipairs(names or {}) do
        local count = ask('ZCARD', at .. worker)
        sum = sum and count and sum + count
    end
    return names and sum
end

local known = ask('HMGET', meta, 'epoch', 'identity', 'at', 'count', 'due', 'with') or {}
local is_same = known[2] == identity
if is_same and from ~= 'seize' and known[1] and tonumber(known[1]) > tonumber(epoch) then
    return {'epoch', known[1]}
end
if from == 'anew' or from == 'seize' then
    for _, worker in ipairs(ask('SMEMBERS', workers) or {}) do
        redis.call('UNLINK', at .. worker)
    end
    redis.call('UNLINK', meta, row, due, with, workers)
elseif not is_same or known[3] ~= from then
    return {'gap', is_same and known[3] or ''}
elseif ask('HLEN', row) ~= tonumber(known[4])
    or ask('ZCARD', due) ~= tonumber(known[5])
    or ask('HLEN', with) ~= tonumber(known[6])
    or handed() ~= tonumber(known[6]) then
    return {'lost', ''}
elseif from == to then
    return {'ok', to}
end

local function take(id)
    local worker = redis.call('HGET', with, id)
    if worker then
        redis.call('HDEL', with, id)
        redis.call('ZREM', at .. worker, id)
        if redis.call('EXISTS', at .. worker) == 0 then
            redis.call('SREM', workers, worker)
        end
    end
end

local index = 9 + 2 * tonumber(ARGV[8])
while index <= #ARGV do
    local op, id = ARGV[index], ARGV[index + 1]
    if op == 'put' then
        redis.call('HSET', row, id, ARGV[index + 2])
        if ARGV[index + 3] == '' then
            redis.call('ZREM', due, id)
        else
            redis.call('ZADD', due, ARGV[index + 3], id)
        end
        index = index + 4
    elseif op == 'remove' then
        redis.call('HDEL', row, id)
        redis.call('ZREM', due, id)
        index = index + 2
    elseif op == 'hand' then
        take(id)
        redis.call('HSET', with, id, ARGV[index + 2])
        redis.call('ZADD', at .. ARGV[index + 2], ARGV[index + 3], id)
        redis.call('SADD', workers, ARGV[index + 2])
        index = index + 4
    else
        take(id)
        index = index + 2
    end
end

local count = redis.call('HLEN', row)
local is_lost = is_whole and count ~= tonumber(ARGV[7])
if is_lost then
    to = 'lost'
end
redis.call('HSET', meta, 'epoch', epoch, 'identity', identity, 'at', to, 'count', count,
    'due', redis.call('ZCARD', due), 'with', redis.call('HLEN', with))
for field = 9, 8 + 2 * tonumber(ARGV[8]), 2 do
    redis.call('HSET', meta, ARGV[field], ARGV[field + 1])
end
redis.call('HSET', meta, 'whole', (is_whole and not is_lost) and 1 or 0)
return {is_lost and 'lost' or 'ok', to}
