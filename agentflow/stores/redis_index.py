"""What the Redis store keeps beside runs and sessions: outcomes by idempotency key, and facts by user.

Nothing here waits; the contracts are those of `stores.base`.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from agentflow.stores import refusals
from agentflow.stores.base import MAX_FACTS, Fact, Outcome, OutcomeKey
from agentflow.stores.redis_scripts import script
from agentflow.stores.redis_server import RedisServer, Script, unpacked

_encode = msgspec.json.Encoder().encode
_outcome = msgspec.json.Decoder(Outcome).decode
_fact = msgspec.json.Decoder(Fact).decode

_CLAIM = script("""
local key, call = KEYS[1], ARGV[3]
if redis.call('HSETNX', key, 'call', call) == 1 then
    redis.call('PEXPIRE', key, ttl)
end
return redis.call('HMGET', key, 'call', 'outcome')
""")

_KEEP = script("""
local key, call, outcome = KEYS[1], ARGV[3], ARGV[4]
if redis.call('HSETNX', key, 'call', call) == 1 then
    redis.call('PEXPIRE', key, ttl)
end
local holder = redis.call('HGET', key, 'call')
if holder == call then
    redis.call('HSETNX', key, 'outcome', outcome)
end
return {holder}
""")

_RELEASE = script("""
local claim = redis.call('HMGET', KEYS[1], 'call', 'outcome')
if claim[1] == ARGV[3] and not claim[2] then
    redis.call('DEL', KEYS[1])
end
""")

_PUT_FACTS = script("""
local users = {}
for i = 4, #ARGV, 4 do
    local key, id, superseded, fact = prefix .. ':facts:{' .. ARGV[i] .. '}', ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
    local place = redis.call('ZSCORE', key .. ':order', id) or next_number()
    redis.call('ZADD', key .. ':order', place, id)
    redis.call('ZREM', key .. ':superseded', id)
    if superseded == '1' then
        redis.call('ZADD', key .. ':superseded', place, id)
    end
    redis.call('HSET', key, id, fact)
    users[key] = true
end
for key in pairs(users) do
    for _ = tonumber(ARGV[3]) + 1, redis.call('ZCARD', key .. ':order') do
        local id = redis.call('ZRANGE', key .. ':superseded', 0, 0)[1] or redis.call('ZRANGE', key .. ':order', 0, 0)[1]
        redis.call('ZREM', key .. ':superseded', id)
        redis.call('ZREM', key .. ':order', id)
        redis.call('HDEL', key, id)
    end
end
""")

_LIST_FACTS = script("""
local ids = redis.call('ZRANGE', KEYS[1] .. ':order', 0, -1)
return #ids > 0 and redis.call('HMGET', KEYS[1], unpack(ids)) or {}
""")

_DELETE_FACT = script("""
redis.call('ZREM', KEYS[1] .. ':order', ARGV[3])
redis.call('ZREM', KEYS[1] .. ':superseded', ARGV[3])
redis.call('HDEL', KEYS[1], ARGV[3])
""")


async def claim_outcome(server: RedisServer, key: OutcomeKey, call_id: str) -> Outcome | None:
    """See `OutcomeIndex.claim_outcome`."""
    holder, outcome = await _at(server, _CLAIM, key, call_id)
    if outcome is not None:
        return unpacked(_outcome, outcome, f"the outcome of {key!r}")
    if holder.decode() != call_id:
        raise refusals.outcome_pending(key, holder.decode())
    return None


async def keep_outcome(server: RedisServer, key: OutcomeKey, call_id: str, outcome: Outcome) -> None:
    """See `OutcomeIndex.keep_outcome`."""
    (holder,) = await _at(server, _KEEP, key, call_id, _encode(outcome))
    if holder.decode() != call_id:
        raise refusals.outcome_pending(key, holder.decode())


async def release_outcome(server: RedisServer, key: OutcomeKey, call_id: str) -> None:
    """See `OutcomeIndex.release_outcome`."""
    await _at(server, _RELEASE, key, call_id)


async def put_facts(server: RedisServer, facts: Sequence[Fact]) -> None:
    """See `FactStore.put_facts`."""
    rows: list[str | bytes | int] = []
    for fact in facts:
        rows += (fact.user_id, fact.id, int(fact.superseded_by is not None), _encode(fact))
    await server.run(_PUT_FACTS, f"{server.prefix}:number", MAX_FACTS, *rows)


async def list_facts(server: RedisServer, user_id: str, *, superseded: bool) -> list[Fact]:
    """See `FactStore.list_facts`."""
    what = f"a fact of user {user_id!r}"
    facts = [unpacked(_fact, data, what) for data in await server.run(_LIST_FACTS, _facts_key(server, user_id))]
    return [fact for fact in facts if superseded or fact.superseded_by is None]


async def delete_fact(server: RedisServer, user_id: str, fact_id: str) -> None:
    """See `FactStore.delete_fact`."""
    await server.run(_DELETE_FACT, _facts_key(server, user_id), fact_id)


def _facts_key(server: RedisServer, user_id: str) -> str:
    return f"{server.prefix}:facts:{{{user_id}}}"


async def _at(server: RedisServer, script: Script, key: OutcomeKey, *args: str | bytes) -> list[Any]:
    name = msgspec.json.encode([key.user_id, key.tool, key.key]).decode()
    found: list[Any] = await server.run(script, f"{server.prefix}:outcome:{{{name}}}", *args)
    return found
