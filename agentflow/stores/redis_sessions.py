"""What the Redis store does to sessions: one script for each, on the server's clock.

None waits for a session to be free: a run whose session is busy gets a place in the line, and asks again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import msgspec

from agentflow.errors import StoreError
from agentflow.events import AgentEvent, encode
from agentflow.stores import refusals
from agentflow.stores.base import (
    MAX_WAITING,
    BusyPolicy,
    Session,
    SessionInfo,
    SessionKey,
    Summary,
    Turn,
)
from agentflow.stores.redis_runs import key_of, tag_of
from agentflow.stores.redis_scripts import PAGE, script
from agentflow.stores.redis_server import Argument, RedisServer, Script, unpacked

IN_LINE = 5.0  # seconds after which a place in the line is lost, unless its store has asked again
_TURNS = 100  # that are asked for at a time

_encode = msgspec.json.Encoder().encode
_turn = msgspec.json.Decoder(Turn).decode
_summary = msgspec.json.Decoder(Summary).decode

_COMMON = """
local tag, key = ARGV[3], KEYS[1]

local function leave_line(id)
    redis.call('ZREM', key .. ':line', id)
    redis.call('ZREM', key .. ':alive', id)
    redis.call('HDEL', run_key(id), 'waiting')
end

local function wake_line()
    if redis.call('ZCARD', key .. ':line') > 0 then
        redis.call('XADD', key .. ':freed', 'MAXLEN', 1, '*', 'x', '')
        redis.call('PEXPIRE', key .. ':freed', 60000)
    end
end

-- The session is nobody's. One that was deleted is forgotten: who is next makes a new one.
local function free()
    if redis.call('HEXISTS', key, 'deleted') == 1 then
        redis.call('UNLINK', key, key .. ':turns', key .. ':runs', key .. ':summaries')
    else
        redis.call('HDEL', key, 'active', 'ticket')
        redis.call('HSET', key, 'used_at', string.format('%.6f', now))
        expire(key, {'', ':turns', ':runs', ':summaries'})
        redis.call('ZADD', prefix .. ':idle', now + ttl / 1000, tag)
    end
    wake_line()
end
"""

_TAKE = script(
    _COMMON
    + """
local id, busy, ticket, in_line, max_waiting = ARGV[4], ARGV[5], ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8])
if redis.call('EXISTS', key .. ':left:' .. ticket) == 1 then
    return {'left'}
end
-- Those whose process has gone. A place that is kept for too long is of a time before the clock was set back.
for _, bounds in ipairs({{'-inf', now}, {string.format('(%.6f', now + in_line), '+inf'}}) do
    for _, gone in ipairs(redis.call('ZRANGEBYSCORE', key .. ':alive', bounds[1], bounds[2])) do
        leave_line(gone)
        drop_if_empty(gone)
    end
end
local line, holder = redis.call('ZRANGE', key .. ':line', 0, -1), redis.call('HGET', key, 'active')
if holder ~= id and (holder or (line[1] and line[1] ~= id)) then
    if not redis.call('ZSCORE', key .. ':line', id) then
        if busy == 'reject' or #line >= max_waiting then
            return {'busy', holder or line[1], #line}
        end
        if busy == 'supersede' then
            for _, other in ipairs({holder or line[1], unpack(line)}) do
                ask_to_end(other, 'superseded')
            end
        end
        local place = redis.call('ZRANGE', key .. ':line', -1, -1, 'WITHSCORES')[2] or 0
        redis.call('ZADD', key .. ':line', place + 1, id)
        redis.call('HSET', ensure_run(id), 'waiting', 1)
    end
    redis.call('ZADD', key .. ':alive', now + in_line, id)
    expire(key, {':line', ':alive'})
    local freed = redis.call('XREVRANGE', key .. ':freed', '+', '-', 'COUNT', 1)[1]
    return {'wait', freed and freed[1] or '0-0'}
end
ensure_run(id)
leave_line(id)
if redis.call('EXISTS', key) == 0 then
    local number = next_number()
    redis.call('ZADD', sessions_key(tag), number, tag)
    redis.call('HSET', key, 'number', number, 'version', 0)
end
if holder ~= id then
    redis.call('HSET', key, 'active', id, 'ticket', ticket)
end
redis.call('HSET', key, 'used_at', string.format('%.6f', now))
redis.call('HSETNX', key .. ':runs', id, 0)
redis.call('HSET', run_key(id), 'session', tag)
for _, suffix in ipairs({'', ':turns', ':runs', ':summaries'}) do
    redis.call('PERSIST', key .. suffix)
end
redis.call('ZREM', prefix .. ':idle', tag)
local session = redis.call('HMGET', key, 'number', 'version')
return {'taken', session[1], session[2], redis.call('HVALS', key .. ':summaries')}
"""
)

_LEAVE = script(
    _COMMON
    + """
local id, ticket = ARGV[4], ARGV[5]
redis.call('SET', key .. ':left:' .. ticket, '', 'PX', 600000)
leave_line(id)
local session = redis.call('HMGET', key, 'active', 'ticket')
if session[1] == id and session[2] == ticket then
    free()
elseif not session[1] then
    wake_line()
end
drop_if_empty(id)
"""
)

_CLOSE = script(
    _COMMON
    + """
local id, turn, closing, token = ARGV[4], ARGV[5], ARGV[6], ARGV[7]
if token ~= '' and not is_held(id, token) then
    return 'lease_lost'
end
if redis.call('HGET', key, 'active') ~= id then
    return
end
local stored = tonumber(redis.call('HGET', key .. ':runs', id) or 0)
if turn ~= '' and stored == 0 and redis.call('HEXISTS', key, 'deleted') == 0 then
    local version = redis.call('HINCRBY', key, 'version', 1)
    redis.call('HSET', key .. ':turns', version, turn)
    redis.call('HSET', key .. ':runs', id, version)
end
local run = run_key(id)
if closing == '' then
    redis.call('HDEL', run, 'closing')
elseif redis.call('HEXISTS', run, 'ended') == 0 then
    redis.call('HSET', run, 'closing', closing)
end
free()
drop_if_empty(id)
"""
)

_DELETE = script(
    _COMMON
    + """
local holder = redis.call('HGET', key, 'active')
for _, id in ipairs(redis.call('HKEYS', key .. ':runs')) do
    local run = redis.call('HMGET', run_key(id), 'ended', 'session')
    if run[1] and run[2] == tag then
        drop_run(id)
    end
end
local asked = redis.call('ZRANGE', key .. ':line', 0, -1)
if holder then
    table.insert(asked, holder)
end
for _, id in ipairs(asked) do
    ask_to_end(id, 'user')
end
redis.call('UNLINK', key .. ':turns', key .. ':runs', key .. ':summaries')
redis.call('ZREM', sessions_key(tag), tag)
redis.call('ZREM', prefix .. ':idle', tag)
if holder then
    redis.call('HSET', key, 'deleted', 1, 'version', 0, 'number', next_number())
else
    redis.call('UNLINK', key)
end
"""
)

_KEEP_SUMMARY = script(
    _COMMON
    + """
local number, version, turns, summary = ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local session = redis.call('HMGET', key, 'number', 'version', 'deleted', 'active')
if session[1] ~= number or session[2] ~= version or session[3] then
    return 0
end
redis.call('HSET', key .. ':summaries', turns, summary)
if not session[4] then
    redis.call('PEXPIRE', key .. ':summaries', math.max(redis.call('PTTL', key), 1))
end
return 1
"""
)

_INFO = """
local function one(tag)
    local session = redis.call('HMGET', session_key(tag), 'number', 'version', 'used_at', 'active', 'deleted')
    return session[1] and not session[5] and {tag, session[1], session[2], session[3], session[4]}
end
"""

_FIND = script(_INFO + "return one(ARGV[3])")

_LIST = script(_INFO + PAGE)


@dataclass(slots=True)
class Ticket:
    """A call of `open_session`, by which its run holds the session, or its place in the line."""

    key: SessionKey
    run_id: str
    busy: BusyPolicy
    id: str = field(default_factory=lambda: uuid4().hex)


@dataclass(slots=True, frozen=True)
class Taken:
    """What a run has got: the session as it is, without its turns."""

    number: int
    version: int
    summaries: tuple[Summary, ...]


def session_key(server: RedisServer, key: SessionKey) -> str:
    """The key of a session, which those of all that it has begin with."""
    return f"{server.prefix}:session:{{{tag_of(key)}}}"


def freed_key(server: RedisServer, key: SessionKey) -> str:
    """The stream that grows when those who wait for the session should ask again."""
    return f"{session_key(server, key)}:freed"


async def take(server: RedisServer, ticket: Ticket) -> Taken | str:
    """The session if it is the run's turn; else it has a place in the line, and the id to wait after in `freed_key`."""
    status, *found = await _run(server, _TAKE, ticket.key, ticket.run_id, ticket.busy, ticket.id, IN_LINE, MAX_WAITING)
    if status == b"wait":
        return str(found[0].decode())
    if status == b"busy":
        raise refusals.busy(ticket.key, found[0].decode(), found[1])
    if status == b"left":
        raise StoreError(f"run {ticket.run_id!r} has given up opening session {ticket.key.session_id!r}")
    number, version, summaries = found
    decoded = [unpacked(_summary, data, f"a summary of session {ticket.key.session_id!r}") for data in summaries]
    in_order = sorted(decoded, key=lambda summary: (summary.first, summary.last))
    return Taken(int(number), int(version), tuple(in_order))


async def leave(server: RedisServer, ticket: Ticket) -> None:
    """Undo all `take`s of the ticket, also one that is still on its way: leave the line, or free the session."""
    await _run(server, _LEAVE, ticket.key, ticket.run_id, ticket.id)


async def load(server: RedisServer, key: SessionKey, taken: Taken, last_turns: int | None) -> Session:
    """The session that a run has just taken, with its turns."""
    after = 0 if last_turns is None else max(taken.version - last_turns, 0)
    turns = await read_turns(server, key, after, taken.version - after)
    return Session(key=key, version=taken.version, turns=tuple(turns), summaries=taken.summaries, number=taken.number)


async def close_session(
    server: RedisServer,
    key: SessionKey,
    run_id: str,
    turn: Turn | None,
    closing: Sequence[AgentEvent],
    token: int | None,
) -> None:
    """See `SessionStore.close_session`."""
    kept, lines = _encode(turn) if turn is not None else "", b"\n".join(map(encode, closing))
    found = await _run(server, _CLOSE, key, run_id, kept, lines, "" if token is None else token)
    if token is not None and found == b"lease_lost":
        raise refusals.lease_lost(run_id, token)


async def read_turns(server: RedisServer, key: SessionKey, after: int, limit: int) -> list[Turn]:
    """See `SessionStore.read_turns`."""
    found: list[Turn] = []
    after = max(after, 0)
    while len(found) < limit:
        first = after + len(found) + 1
        numbers = range(first, first + min(limit - len(found), _TURNS))
        page = await server.call("HMGET", f"{session_key(server, key)}:turns", *numbers)
        what = f"a turn of session {key.session_id!r}"
        found += [unpacked(_turn, data, what) for data in page if data is not None]
        if None in page:
            break
    return found


async def list_sessions(server: RedisServer, user_id: str | None, before: int | None, limit: int) -> list[SessionInfo]:
    """See `SessionStore.list_sessions`."""
    index = f"{server.prefix}:sessions:{'' if user_id is None else f'={user_id}'}"
    upper = "+inf" if before is None else f"({before}"
    return [_info(found) for found in await server.run(_LIST, index, upper, limit)]


async def find_session(server: RedisServer, key: SessionKey) -> SessionInfo | None:
    """See `SessionStore.find_session`."""
    found = await _run(server, _FIND, key)
    return _info(found) if found else None


async def delete_session(server: RedisServer, key: SessionKey) -> None:
    """See `SessionStore.delete_session`."""
    await _run(server, _DELETE, key)


async def keep_summary(server: RedisServer, seen: Session | SessionInfo, summary: Summary) -> bool:
    """See `SessionStore.keep_summary`."""
    turns = f"{summary.first}-{summary.last}"
    return bool(await _run(server, _KEEP_SUMMARY, seen.key, seen.number, seen.version, turns, _encode(summary)))


async def _run(server: RedisServer, script: Script, key: SessionKey, *args: Argument) -> Any:
    return await server.run(script, session_key(server, key), tag_of(key), *args)


def _info(found: Sequence[Any]) -> SessionInfo:
    tag, number, version, used_at, active_run = found
    return SessionInfo(
        key=key_of(tag),
        number=int(number),
        version=int(version),
        used_at=float(used_at),
        active_run=active_run.decode() if active_run is not None else None,
    )
