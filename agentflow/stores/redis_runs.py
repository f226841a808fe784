"""What the Redis store does to runs, their events and their leases: one script for each, on the server's clock.

Nothing here waits for anything but the server's reply.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec

from agentflow.events import TERMINAL_TYPES, AgentEvent, decode, encode
from agentflow.stores import letters, refusals
from agentflow.stores.base import MAX_LETTER_BYTES, MAX_LETTERS, Letter, RunRecord, SessionKey
from agentflow.stores.redis_scripts import PAGE, script
from agentflow.stores.redis_server import RedisServer, unpacked

PAGE_BYTES = 4 * 1024 * 1024  # encoded events after which a page ends, whatever its limit
_ENTRIES = 100  # of a stream that are asked for at a time

_APPEND = script("""
local id, token, first, ends = ARGV[3], ARGV[4], tonumber(ARGV[5]), ARGV[6] == '1'
local key = KEYS[1]
local events = key .. ':events'
if token ~= '' and not is_held(id, token) then
    return 'lease_lost'
end
local last = redis.call('XLEN', events)  -- which nothing is ever taken from
if #ARGV == 6 then
    return 'done'
elseif first ~= last + 1 then
    return last
end
ensure_run(id)
for i = 7, #ARGV do
    redis.call('XADD', events, string.format('%d-0', last + i - 6), 'e', ARGV[i])
end
if ends then
    redis.call('HDEL', key, 'closing')
    redis.call('HSET', key, 'ended', now)
    redis.call('ZREM', prefix .. ':open', id)
    redis.call('ZADD', prefix .. ':ended', now + ttl / 1000, id)
    redis.call('UNLINK', key .. ':inbox', key .. ':read')
    expire(key, {'', ':events'})
end
return 'done'
""")

_RECORD = """
local function one(id)
    local key = run_key(id)
    local run = redis.call('HMGET', key, 'number', 'session', 'ended', 'closing')
    return run[1] and {id, run[1], run[2], redis.call('XLEN', key .. ':events'), run[3], run[4]}
end
"""

_FIND = script(_RECORD + "return one(ARGV[3])")

_LIST = script(_RECORD + PAGE)

_ACQUIRE = script("""
local id, owner, lease = ARGV[3], ARGV[4], tonumber(ARGV[5])
local key = ensure_run(id)
local held = redis.call('HMGET', key, 'owner', 'token', 'until', 'lease')
local token = held[2]
if held[1] ~= owner then
    -- A lease that lasts for longer than it was given for is of a time before the clock was set back.
    if held[1] and now < tonumber(held[3]) and tonumber(held[3]) <= now + tonumber(held[4]) then
        return false
    end
    token = next_number()
end
redis.call('HSET', key, 'owner', owner, 'token', token, 'until', string.format('%.6f', now + lease), 'lease', lease)
return token
""")

_RENEW = script("""
local token, lease = ARGV[3], tonumber(ARGV[4])
local held = redis.call('HMGET', KEYS[1], 'owner', 'token')
if not held[1] or held[2] ~= token then
    return false
end
local waiting = redis.call('XLEN', KEYS[1] .. ':inbox')
redis.call('HSET', KEYS[1], 'until', string.format('%.6f', now + lease), 'lease', lease)
return waiting
""")

_RELEASE = script("""
local id, token = ARGV[3], ARGV[4]
if redis.call('HGET', KEYS[1], 'token') == token then
    redis.call('HDEL', KEYS[1], 'owner')
    drop_if_empty(id)
end
""")

_SEND = script("""
local id, name, data, room, bytes = ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7])
for _, entry in ipairs(name ~= 'cancel' and redis.call('XRANGE', KEYS[1] .. ':inbox', '-', '+') or {}) do
    if entry[2][1] == name then
        return 'done'
    end
    room, bytes = room - 1, bytes - #entry[2][2]
end
if room < 1 or #data > bytes then
    return 'full'
end
send_letter(id, name, data)
return 'done'
""")

_DELETE_LETTERS = script("""
for _, entry in ipairs(redis.call('XRANGE', KEYS[1] .. ':inbox', '-', '+')) do
    for i = 3, #ARGV do
        if entry[2][1] == ARGV[i] then
            redis.call('XDEL', KEYS[1] .. ':inbox', entry[1])
        end
    end
end
if redis.call('XLEN', KEYS[1] .. ':inbox') == 0 then
    redis.call('UNLINK', KEYS[1] .. ':inbox')
end
""")

_MARK_READ = script("""
local mark, lasts = KEYS[1] .. ':read', math.ceil(tonumber(ARGV[3]) * 1000)
if redis.call('HEXISTS', KEYS[1], 'number') == 0 or redis.call('HEXISTS', KEYS[1], 'ended') == 1 then
    return 0
end
if redis.call('PTTL', mark) < lasts then
    redis.call('SET', mark, '', 'PX', lasts)
end
return 1
""")

_READ_FOR = script("""
return redis.call('HEXISTS', KEYS[1], 'ended') == 0 and redis.call('PTTL', KEYS[1] .. ':read') or 0
""")


def run_key(server: RedisServer, run_id: str) -> str:
    """The key of a run, which those of its streams begin with."""
    return f"{server.prefix}:run:{{{run_id}}}"


def events_key(server: RedisServer, run_id: str) -> str:
    """The stream of a run's events, one entry `SEQ-0` for each."""
    return f"{run_key(server, run_id)}:events"


def inbox_key(server: RedisServer, run_id: str) -> str:
    """The stream of the letters to a run."""
    return f"{run_key(server, run_id)}:inbox"


def asked_key(server: RedisServer) -> str:
    """The stream of the ids of runs that were sent letters."""
    return f"{server.prefix}:asked"


def tag_of(key: SessionKey) -> str:
    """A session in its keys: nobody is not the user with the empty id."""
    return msgspec.json.encode([key.user_id, key.session_id]).decode()


def key_of(tag: bytes) -> SessionKey:
    """The session that `tag_of` names."""
    user_id, session_id = msgspec.json.decode(tag, type=tuple[str | None, str])
    return SessionKey(session_id, user_id)


async def append(server: RedisServer, run_id: str, events: Sequence[AgentEvent], token: int | None) -> None:
    """See `EventLog.append`."""
    for before, event in pairwise(events):
        if event.seq != before.seq + 1:
            raise refusals.does_not_follow(run_id, event.seq, before.seq)
    first, ends = (events[0].seq, events[-1].type in TERMINAL_TYPES) if events else (0, False)
    lines = map(encode, events)
    found = await server.run(
        _APPEND, run_key(server, run_id), run_id, "" if token is None else token, first, int(ends), *lines
    )
    if token is not None and found == b"lease_lost":
        raise refusals.lease_lost(run_id, token)
    if found != b"done":
        raise refusals.does_not_follow(run_id, first, found)


async def read(server: RedisServer, run_id: str, after: int, limit: int) -> list[AgentEvent]:
    """See `EventLog.read`."""
    found: list[AgentEvent] = []
    size, after = 0, max(after, 0)
    while len(found) < limit and size < PAGE_BYTES:
        count = min(limit - len(found), _ENTRIES)
        entries = await server.call(
            "XRANGE", events_key(server, run_id), f"({after + len(found)}-0", "+", "COUNT", count
        )
        for _, (_, data) in entries or ():
            found.append(unpacked(decode, data, f"event {after + len(found) + 1} of run {run_id!r}"))
            size += len(data)
        if not entries or len(entries) < count:
            break
    return found


async def last(server: RedisServer, run_id: str) -> int | None:
    """See `EventLog.last`."""
    return await server.call("XLEN", events_key(server, run_id)) or None


async def find_run(server: RedisServer, run_id: str) -> RunRecord | None:
    """See `RunStore.find_run`."""
    found = await server.run(_FIND, run_key(server, run_id), run_id)
    return _record(found) if found else None


async def list_runs(server: RedisServer, before: int | None, limit: int, *, open_only: bool) -> list[RunRecord]:
    """See `RunStore.list_runs`."""
    upper = "+inf" if before is None else f"({before}"
    runs = await server.run(_LIST, f"{server.prefix}:{'open' if open_only else 'runs'}", upper, limit)
    return [_record(found) for found in runs]


async def acquire_lease(server: RedisServer, run_id: str, owner: str, ttl: float) -> int | None:
    """See `RunStore.acquire_lease`."""
    token = await server.run(_ACQUIRE, run_key(server, run_id), run_id, owner, ttl)
    return int(token) if token is not None else None


async def renew_lease(server: RedisServer, run_id: str, token: int, ttl: float) -> bool:
    """See `RunStore.renew_lease`."""
    waiting = await server.run(_RENEW, run_key(server, run_id), token, ttl)
    if waiting is None:
        raise refusals.lease_lost(run_id, token)
    return bool(waiting)


async def release_lease(server: RedisServer, run_id: str, token: int) -> None:
    """See `RunStore.release_lease`."""
    await server.run(_RELEASE, run_key(server, run_id), run_id, token)


async def send_letter(server: RedisServer, run_id: str, letter: Letter) -> None:
    """See `RunStore.send_letter`."""
    bounds = (MAX_LETTERS, MAX_LETTER_BYTES)
    if await server.run(_SEND, run_key(server, run_id), run_id, letter.id, letters.encode(letter), *bounds) == b"full":
        raise letters.no_room(run_id)


async def list_letters(server: RedisServer, run_id: str) -> list[Letter]:
    """See `RunStore.list_letters`."""
    entries = await server.call("XRANGE", inbox_key(server, run_id), "-", "+")
    return [unpacked(letters.decode, data, f"a letter to run {run_id!r}") for _, (_, data) in entries]


async def delete_letters(server: RedisServer, run_id: str, ids: Sequence[str]) -> None:
    """See `RunStore.delete_letters`."""
    await server.run(_DELETE_LETTERS, run_key(server, run_id), *ids)


async def asked_since(server: RedisServer, after: str | None) -> tuple[str, Sequence[str]]:
    """The runs that were sent letters after an entry of `asked_key`, and the last one; with None only the last one."""
    if after is None:
        newest = await server.call("XREVRANGE", asked_key(server), "+", "-", "COUNT", 1)
        return (newest[0][0].decode() if newest else "0-0"), ()
    entries = await server.call("XRANGE", asked_key(server), f"({after}", "+")
    return (entries[-1][0].decode() if entries else after), [fields[1].decode() for _, fields in entries]


async def mark_read(server: RedisServer, run_id: str, ttl: float) -> bool:
    """See `RunStore.mark_read`."""
    return bool(await server.run(_MARK_READ, run_key(server, run_id), ttl))


async def read_for(server: RedisServer, run_id: str) -> float:
    """See `RunStore.read_for`."""
    return max(int(await server.run(_READ_FOR, run_key(server, run_id))), 0) / 1000


def _record(found: Sequence[Any]) -> RunRecord:
    run_id, number, tag, last_seq, ended, closing = found
    what = f"the end of run {run_id.decode()!r}"
    return RunRecord(
        run_id=run_id.decode(),
        number=int(number),
        session=key_of(tag) if tag else None,
        last=last_seq,
        ended=ended is not None,
        closing=tuple(unpacked(decode, line, what) for line in closing.split(b"\n")) if closing else (),
    )
