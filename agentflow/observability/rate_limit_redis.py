"""What several processes have taken together, kept on a Redis server: each question is one script, by its clock.

Places are held for `LEASE_SECONDS` and renewed, so that a process that dies gives its own back. While the server does
not answer, each process goes by what it has taken itself, or refuses everything.

Keys, after the prefix: `LIMIT:SUBJECT`, a hash (level, at) for a bucket, a sorted set of leases by expiry for places.
They expire when they are as good as new.
"""

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from functools import partial
from math import inf
from typing import Any, Literal, TypeAlias

from agentflow.errors import RateLimitedError, StoreError
from agentflow.observability.rate_limit import Lack, MemoryLedger, Need
from agentflow.stores.redis_server import Argument, RedisServer, Script
from agentflow.streams import Clock, TaskOwner, Timer

logger = logging.getLogger(__name__)

WhenDown: TypeAlias = Literal["local", "refuse"]

PREFIX = "af:limit"
LEASE_SECONDS = 15.0
CALL_SECONDS = 1.0  # in which a server that is well has answered
PAUSE_SECONDS = 5.0  # for which one that has not is left alone
_RENEWALS = 3  # in the time of one lease: two may fail
_POLL = 0.1  # seconds after which a place that another process may have given back is looked for

_COMMON = """
local prefix, ttl = ARGV[1], tonumber(ARGV[2])
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1e6

local function read(key, most, rate)
    local found = redis.call('HMGET', key, 'level', 'at')
    if not found[1] then
        return most, now
    end
    local at = tonumber(found[2])
    return math.min(most, tonumber(found[1]) + math.max(0, now - at) * rate), math.max(now, at)
end

local function charge(key, amount, most, rate)
    local level, at = read(key, most, rate)
    level = math.min(most, level - amount)
    redis.call('HSET', key, 'level', string.format('%.17g', level), 'at', string.format('%.6f', at))
    redis.call('PEXPIRE', key, string.format('%.0f', math.ceil((most - level) / rate * 1000) + 1000))
end

local function hold(key, lease)
    redis.call('ZADD', key, string.format('%.6f', now + ttl / 1000), lease)
    redis.call('PEXPIRE', key, ttl)
end

-- From ARGV[first] on, needs are their key, amount, quota and rate.
local function each(first, act)
    for i = first, #ARGV, 4 do
        local found = act(prefix .. ':' .. ARGV[i], tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3]))
        if found then
            return {(i - first) / 4, found}
        end
    end
end
"""

# Take the needs with the lease ARGV[3]: nil, or the first that is lacking and its seconds, '' if nobody knows.
_TAKE = Script(
    _COMMON
    + """
local lacking = each(4, function(key, amount, most, rate)
    if rate > 0 then
        local missing = (amount > 0 and amount or math.min(1, most)) - read(key, most, rate)
        return missing > 1e-9 and string.format('%.6f', missing / rate)
    end
    redis.call('ZREMRANGEBYSCORE', key, '-inf', string.format('%.6f', now))
    return redis.call('ZCARD', key) >= most and ''
end)
if lacking then
    return lacking
end
each(4, function(key, amount, most, rate)
    if rate > 0 then
        charge(key, amount, most, rate)
    else
        hold(key, ARGV[3])
    end
end)
"""
)
_CHARGE = Script(_COMMON + "each(3, function(...) charge(...) end)")
# From ARGV[3] on, a key and a lease that it is held by, each.
_HOLD = Script(_COMMON + "for i = 3, #ARGV, 2 do hold(prefix .. ':' .. ARGV[i], ARGV[i + 1]) end")
_RELEASE = Script(_COMMON + "for i = 3, #ARGV, 2 do redis.call('ZREM', prefix .. ':' .. ARGV[i], ARGV[i + 1]) end")


class RedisLedger:
    """See `rate_limit.Ledger`. What is given back or charged is on its way when the call returns.

    `when_down` says what counts while the server does not answer: "local" what this process has taken, so that each
    keeps to the limits by itself; "refuse" lets nothing through.
    """

    poll = _POLL

    def __init__(
        self,
        url: str,
        clock: Clock,
        *,
        when_down: WhenDown = "local",
        prefix: str = PREFIX,
        lease: float = LEASE_SECONDS,
        call_timeout: float = CALL_SECONDS,
    ) -> None:
        # One connection, so that what is sent first is done first: a place is never renewed after it was given back.
        self._server = RedisServer(
            url, prefix=prefix, ttl=lease, call_timeout=call_timeout, connections=1, require_aof=None
        )
        self._clock = clock
        self._when_down = when_down
        self._lease = lease
        self._owner = TaskOwner()
        self._local = MemoryLedger(clock)
        self._held: dict[str, tuple[str, ...]] = {}  # the keys of the places by their lease
        self._timer: Timer | None = None
        self._down_until = -inf

    async def take(self, needs: Sequence[Need], lease: str) -> Lack | None:
        """See `Ledger`. Raises `RateLimitedError` where it cannot ask, and is to let nothing through then."""
        lack = next((Lack(need, inf) for need in needs if need.amount > need.quota.amount), None)
        if lack is not None:
            return lack
        asking = self._owner.spawn(self._take(needs, lease), name="agentflow limits")
        try:
            found = await asyncio.shield(asking)
        except asyncio.CancelledError:
            # It cannot be known whether it was done; once it is, it is undone.
            asking.add_done_callback(partial(self._undo, needs, lease))
            raise
        return await self._take_without(needs, lease, found) if isinstance(found, StoreError) else found

    def charge(self, need: Need, amount: float) -> None:
        """See `Ledger`."""
        if self._is_down():
            self._local.charge(need, amount)
        else:
            self._send(_CHARGE, need.key, amount, need.quota.amount, need.quota.rate)

    def hold(self, needs: Sequence[Need], lease: str) -> None:
        """See `Ledger`."""
        keys = self._keep(needs, lease)
        if keys:
            self._send(_HOLD, *(part for key in keys for part in (key, lease)))

    def release(self, needs: Sequence[Need], lease: str) -> None:
        """See `Ledger`."""
        keys = self._held.pop(lease, None)
        if not self._held and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if keys is None:
            self._local.release(needs, lease)
        else:
            self._send(_RELEASE, *(part for key in keys for part in (key, lease)))

    async def aclose(self) -> None:
        """Send what is on its way, then close the connection. Places that are held lapse."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self._owner.drain(CALL_SECONDS)
        await self._owner.aclose()
        await self._server.aclose()

    # -- asking --------------------------------------------------------------------------------------------

    async def _take(self, needs: Sequence[Need], lease: str) -> Lack | StoreError | None:
        if self._is_down():
            return StoreError("the server did not answer just now")
        try:
            found = await self._server.run(_TAKE, "", lease, *(part for need in needs for part in _told(need)))
        except StoreError as error:
            return error
        self._down_until = -inf
        if found is None:
            self._keep(needs, lease)
            return None
        return Lack(needs[found[0]], float(found[1]) if found[1] else None)

    async def _take_without(self, needs: Sequence[Need], lease: str, error: StoreError) -> Lack | None:
        self._note_down(error)
        if self._when_down == "local":
            return await self._local.take(needs, lease)
        raise RateLimitedError(f"the limits cannot be checked just now: {error}", retry_after=PAUSE_SECONDS)

    def _undo(self, needs: Sequence[Need], lease: str, asked: "asyncio.Task[Lack | StoreError | None]") -> None:
        if asked.cancelled() or asked.result() is not None:
            return
        for need in needs:
            if need.quota.rate:
                self.charge(need, -need.amount)
        if lease in self._held:
            self.release(needs, lease)

    def _is_down(self) -> bool:
        return self._clock.monotonic() < self._down_until

    def _note_down(self, error: StoreError) -> None:
        if self._is_down():
            return
        self._down_until = self._clock.monotonic() + PAUSE_SECONDS
        then = "each process keeps to them by itself" if self._when_down == "local" else "nothing is let through"
        logger.warning("the limits cannot be shared: %s; for %g s %s", error, PAUSE_SECONDS, then)

    def _send(self, script: Script, *arguments: Argument) -> None:
        self._owner.spawn(self._sent(self._server.run(script, "", *arguments)), name="agentflow limits")

    async def _sent(self, call: Coroutine[Any, Any, Any]) -> None:
        try:
            await call
        except StoreError as error:
            self._note_down(error)  # a place that was not given back lapses

    # -- places --------------------------------------------------------------------------------------------

    def _keep(self, needs: Sequence[Need], lease: str) -> tuple[str, ...]:
        """Hold the places that are among the needs until they are released; their keys."""
        keys = tuple(need.key for need in needs if not need.quota.rate)
        if keys:
            self._held[lease] = keys
            self._arm()
        return keys

    def _arm(self) -> None:
        if self._timer is None:
            self._timer = self._clock.call_later(self._lease / _RENEWALS, self._renew)

    def _renew(self) -> None:
        self._timer = None
        if self._held:
            self._arm()
            self._send(_HOLD, *(part for lease, keys in self._held.items() for key in keys for part in (key, lease)))


def _told(need: Need) -> tuple[Argument, ...]:
    return need.key, need.amount, need.quota.amount, need.quota.rate
