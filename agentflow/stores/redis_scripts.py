"""What the Redis store's scripts have in common: its keys, its clock, and what to do when something ends.

Only Lua; the scripts themselves stand beside the calls that run them. A script is done wholly or not at all, so
whatever belongs together is changed by one. Each looks before it writes, for an error undoes nothing.

Keys, after the prefix:

    number                         the last number given to a run, a session, a lease or a fact
    run:{ID}                       hash: number, session, waiting, owner, token, until, lease, closing, ended
    run:{ID}:events  :inbox        streams: the log, one entry `SEQ-0` per event; letters, each a field with its id
    run:{ID}:read                  there as long as somebody reads the run
    asked                          stream: the ids of runs that were sent letters of late, which wakes who listens
    runs  open  ended              sorted sets of run ids: all and those not ended by number, ended ones by expiry
    session:{TAG}                  hash: number, version, active, ticket, used_at, deleted
    session:{TAG}:turns  :runs     hashes: each turn by its number; the number of the turn of each run, 0 for none
    session:{TAG}:summaries        hash: each summary by its turns
    session:{TAG}:line  :alive     sorted sets of run ids that wait: by place, and by when they lose it
    session:{TAG}:freed            stream: wakes those who wait
    session:{TAG}:left:TICKET      a call that has given up: its request, should it come late, does nothing
    sessions:USER  idle            sorted sets of tags: a user's by number, and those nobody holds by expiry
    outcome:{KEY}                  hash: call, outcome
    facts:{USER}                   hash of facts by id, and sorted sets `:order`, `:superseded`

All keys of a run have one hash tag, as have those of a session. What has ended expires by itself; the sets that name
it are swept when a run begins.
"""

from agentflow.stores.redis_server import Script

_COMMON = """
local prefix, ttl = ARGV[1], tonumber(ARGV[2])
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1e6

local function run_key(id) return prefix .. ':run:{' .. id .. '}' end
local function session_key(tag) return prefix .. ':session:{' .. tag .. '}' end
local function sessions_key(tag)
    local user = cjson.decode(tag)[1]
    return prefix .. ':sessions:' .. (user == cjson.null and '' or '=' .. user)
end

-- Higher than any before, also when the server has lost some and begins again with older data: then two owners must
-- not get the same token.
local function next_number()
    local key, clock = prefix .. ':number', string.format('%s%06d', time[1], time[2])
    local number = redis.call('INCR', key)
    if number < tonumber(clock) then
        redis.call('SET', key, clock)
        return clock
    end
    return string.format('%.0f', number)
end

local function expire(key, suffixes)
    for _, suffix in ipairs(suffixes) do
        redis.call('PEXPIRE', key .. suffix, ttl)
    end
end

local function sweep()
    for _, id in ipairs(redis.call('ZRANGEBYSCORE', prefix .. ':ended', '-inf', now, 'LIMIT', 0, 20)) do
        redis.call('ZREM', prefix .. ':runs', id)
        redis.call('ZREM', prefix .. ':ended', id)
    end
    for _, tag in ipairs(redis.call('ZRANGEBYSCORE', prefix .. ':idle', '-inf', now, 'LIMIT', 0, 20)) do
        redis.call('ZREM', sessions_key(tag), tag)
        redis.call('ZREM', prefix .. ':idle', tag)
    end
end

-- Whether `token` is the last that was given for the run, and has not been given back.
local function is_held(id, token)
    local held = redis.call('HMGET', run_key(id), 'owner', 'token')
    return held[1] and held[2] == token
end

local function ensure_run(id)
    local key = run_key(id)
    if redis.call('HEXISTS', key, 'number') == 0 then
        sweep()
        local number = next_number()
        redis.call('ZADD', prefix .. ':runs', number, id)
        redis.call('ZADD', prefix .. ':open', number, id)
        redis.call('HSET', key, 'number', number)
    end
    return key
end

local function drop_run(id)
    local key = run_key(id)
    redis.call('UNLINK', key, key .. ':events', key .. ':inbox', key .. ':read')
    for _, set in ipairs({':runs', ':open', ':ended'}) do
        redis.call('ZREM', prefix .. set, id)
    end
end

-- Forget a run of which there is nothing to know any more.
local function drop_if_empty(id)
    local key = run_key(id)
    local run = redis.call('HMGET', key, 'owner', 'waiting', 'session')
    if run[1] or run[2] or redis.call('XLEN', key .. ':events') > 0 then
        return
    end
    if not (run[3] and redis.call('HGET', session_key(run[3]), 'active') == id) then
        drop_run(id)
    end
end

-- Put a letter into the inbox of a run that goes on, and wake who listens; not if one with its id lies there.
local function send_letter(id, name, data)
    local key = run_key(id)
    local inbox = key .. ':inbox'
    if redis.call('HEXISTS', key, 'number') == 0 or redis.call('HEXISTS', key, 'ended') == 1 then
        return
    end
    for _, entry in ipairs(redis.call('XRANGE', inbox, '-', '+')) do
        if entry[2][1] == name then
            return
        end
    end
    redis.call('XADD', inbox, '*', name, data)
    redis.call('XADD', prefix .. ':asked', 'MAXLEN', '~', 1000, '*', 'run', id)
    redis.call('PEXPIRE', prefix .. ':asked', 60000)
end

local function ask_to_end(id, reason)
    send_letter(id, 'cancel', cjson.encode({id = 'cancel', verb = 'cancel', text = reason}))
end
"""

# A page of the sorted set KEYS[1], from below ARGV[3] on, of up to ARGV[4] records, as `one(member)` gives them: false
# for those that have expired.
PAGE = """
local upper, limit, found = ARGV[3], tonumber(ARGV[4]), {}
while #found < limit do
    local page = redis.call('ZREVRANGEBYSCORE', KEYS[1], upper, '-inf', 'WITHSCORES', 'LIMIT', 0, limit - #found)
    if #page == 0 then
        break
    end
    for i = 1, #page, 2 do
        found[#found + 1] = one(page[i]) or nil
    end
    upper = '(' .. page[#page]
end
return found
"""


def script(text: str) -> Script:
    """A script of the store. Its first arguments are the prefix of all keys and the ttl in milliseconds."""
    return Script(_COMMON + text)
