"""How much may be done: token buckets and places, what of them is taken, and the line of those who wait.

For whom a limit is, and before what it stands, is decided in `gates` and by the transports.
"""

import secrets
from asyncio import Event
from collections import Counter, OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

from agentflow.errors import RateLimitedError
from agentflow.streams import Clock

MAX_KEYS = 100_000  # buckets and places that are kept in memory; beyond that the one used longest ago is forgotten
MAX_WAITING = 1_000  # who may wait at a time
PLACE_WAIT = 1.0  # seconds: what is told of a place, since nobody knows when it will be given back

_LEAST = 1.0  # what a bucket has to have for a need of nothing
_DUST = 1e-9  # what floating point may lose
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True, slots=True)
class Quota:
    """At most `amount` at once; so much comes back by itself each second (`rate`).

    With the rate 0 these are places: nothing comes back until whoever has it gives it back.
    """

    amount: float
    rate: float = 0.0

    @classmethod
    def parse(cls, text: str) -> "Quota":
        """A rate as settings have it: "60/m" is sixty at once, and one more every second."""
        amount, _, unit = text.partition("/")
        return cls(float(amount), float(amount) / _SECONDS[unit])


@dataclass(frozen=True, slots=True)
class Need:
    """So much of what `limit` allows `subject`. Of places one."""

    limit: str
    subject: str
    quota: Quota
    amount: float = 1.0

    @property
    def key(self) -> str:
        """What is counted together."""
        return f"{self.limit}:{self.subject}"


@dataclass(frozen=True, slots=True)
class Lack:
    """The need that cannot be met now, and in how many seconds it can; `inf` is never, None is that nobody knows."""

    need: Need
    wait: float | None


@dataclass(slots=True)
class TokenBucket:
    """A bucket of a quota with a rate, at `at` seconds of any clock that does not go backwards. Pure.

    In any time t no more than `amount + rate * t` can be taken. It may be charged more than it has: that is a debt,
    and nothing can be taken until it is paid.
    """

    quota: Quota
    at: float
    level: float = field(init=False)

    def __post_init__(self) -> None:
        self.level = self.quota.amount

    def wait(self, amount: float, now: float) -> float:
        """The seconds until so much can be taken: 0 for now, `inf` for never."""
        if amount > self.quota.amount:
            return inf
        self._refill(now)
        missing = (amount or min(_LEAST, self.quota.amount)) - self.level
        return missing / self.quota.rate if missing > _DUST else 0.0

    def charge(self, amount: float, now: float) -> None:
        """Take so much, be it there or not; less than nothing is given back."""
        self._refill(now)
        self.level = min(self.level - amount, self.quota.amount)

    def is_full(self, now: float) -> bool:
        """Whether it is as it was made, so that it need not be kept."""
        self._refill(now)
        return self.level >= self.quota.amount - _DUST

    def _refill(self, now: float) -> None:
        if now > self.at:
            self.level = min(self.level + (now - self.at) * self.quota.rate, self.quota.amount)
            self.at = now


class Ledger(Protocol):
    """Where what is taken stands. A `lease` names who has taken places."""

    poll: float  # seconds after which a place is looked for again, which nobody may tell of

    async def take(self, needs: Sequence[Need], lease: str) -> Lack | None:
        """Take all, or nothing and say what is lacking. A cancel takes nothing."""
        ...

    def charge(self, need: Need, amount: float) -> None:
        """So much more of a bucket was used, or less than nothing: less."""
        ...

    def hold(self, needs: Sequence[Need], lease: str) -> None:
        """Take places, be they free or not."""
        ...

    def release(self, needs: Sequence[Need], lease: str) -> None:
        """Give places back. Those that are not held any more are none."""
        ...

    async def aclose(self) -> None:
        """Close what is open."""
        ...


class MemoryLedger:
    """What this process has taken. Places end with the process, so that they need no time of their own."""

    poll = inf

    def __init__(self, clock: Clock, *, max_keys: int = MAX_KEYS) -> None:
        self._clock = clock
        self._max_keys = max_keys
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()  # the one used longest ago first
        self._places: Counter[str] = Counter()

    def __len__(self) -> int:
        """The keys that are kept."""
        return len(self._buckets) + len(self._places)

    async def take(self, needs: Sequence[Need], lease: str) -> Lack | None:
        """See `Ledger`."""
        now = self._clock.monotonic()
        for need in needs:  # checks first: what is refused costs nothing
            wait = self._wait(need, now)
            if wait != 0.0:
                return Lack(need, wait)
        for need in needs:
            if need.quota.rate:
                self._bucket(need, now).charge(need.amount, now)
        self.hold(needs, lease)
        return None

    def _wait(self, need: Need, now: float) -> float | None:
        if need.quota.rate:
            return self._bucket(need, now).wait(need.amount, now)
        return 0.0 if self._places[need.key] < need.quota.amount else None

    def charge(self, need: Need, amount: float) -> None:
        """See `Ledger`."""
        now = self._clock.monotonic()
        self._bucket(need, now).charge(amount, now)

    def hold(self, needs: Sequence[Need], lease: str) -> None:
        """See `Ledger`."""
        self._places.update(need.key for need in needs if not need.quota.rate)

    def release(self, needs: Sequence[Need], lease: str) -> None:
        """See `Ledger`."""
        for need in needs:
            if self._places[need.key] > 1:
                self._places[need.key] -= 1
            else:
                del self._places[need.key]

    async def aclose(self) -> None:
        """See `Ledger`: nothing is."""

    def _bucket(self, need: Need, now: float) -> TokenBucket:
        key = need.key
        bucket = self._buckets.get(key)
        if bucket is None:
            self._drop_idle(now)
            bucket = self._buckets[key] = TokenBucket(need.quota, now)
        self._buckets.move_to_end(key)
        return bucket

    def _drop_idle(self, now: float) -> None:
        """Make room before one more is kept: those that are full are as good as new."""
        while self._buckets and next(iter(self._buckets.values())).is_full(now):
            self._buckets.popitem(last=False)
        if len(self._buckets) >= self._max_keys:
            self._buckets.popitem(last=False)


class Grant:
    """What was let through. `release` it when it is over, whatever it came to."""

    def __init__(self, limiter: "Limiter", needs: Sequence[Need], lease: str) -> None:
        self._limiter = limiter
        self._lease = lease
        self._places = tuple(need for need in needs if not need.quota.rate)
        self._needs = tuple(needs)

    def settle(self, kind: str, used: float) -> None:
        """Of the needs whose limits end in `.kind` so much was used in truth, and not what was asked for."""
        for need in self._needs:
            if need.limit.endswith(f".{kind}") and used != need.amount:
                self._limiter.charge(need, used - need.amount)

    def release(self) -> None:
        """Give the places back. Counts once."""
        places, self._places = self._places, ()
        if places:
            self._limiter.release(places, self._lease)


@dataclass(slots=True, eq=False)
class _Waiter:
    """Who waits for a need, until `due` at least when it stands first in line."""

    need: Need
    due: float
    moved: Event = field(default_factory=Event)


class Limiter:
    """Gives what a ledger has, in the order in which it was asked for, and lets others wait in a bounded line.

    Each key has a line of its own: who waits for one user's limit holds up nobody else. Who waits has taken nothing.
    `waiting` says how many do, `refused` how often each limit has refused.
    """

    def __init__(self, ledger: Ledger, clock: Clock, *, max_waiting: int = MAX_WAITING) -> None:
        self._ledger = ledger
        self._clock = clock
        self._max_waiting = max_waiting
        self._lines: dict[str, deque[_Waiter]] = {}
        self.waiting = 0
        self.refused: Counter[str] = Counter()

    async def acquire(self, needs: Sequence[Need], patience: float = 0.0) -> Grant:
        """All that is needed, or nothing: at once, or after a wait of at most `patience` seconds.

        Raises `RateLimitedError`, at once where it would take longer, or where too many wait. A cancel takes nothing.
        """
        lease = secrets.token_hex(8)
        lack = self._ahead(needs) or await self._ledger.take(needs, lease)
        if lack is not None:
            impatient = patience <= 0 or (lack.wait is not None and lack.wait > patience)
            if impatient or self.waiting >= self._max_waiting:
                raise self._refusal(lack)
            await self._wait(needs, lease, lack, self._clock.monotonic() + patience)
        return Grant(self, needs, lease)

    def hold(self, needs: Sequence[Need]) -> Grant:
        """Places that are counted, be they free or not."""
        lease = secrets.token_hex(8)
        self._ledger.hold(needs, lease)
        return Grant(self, needs, lease)

    def charge(self, need: Need, amount: float) -> None:
        """So much more was used of a bucket than was asked for, or less than nothing: less."""
        self._ledger.charge(need, amount)

    def release(self, needs: Sequence[Need], lease: str) -> None:
        """Give places back, and tell who waits for them; see `Grant.release`."""
        self._ledger.release(needs, lease)
        for need in needs:
            self._call_first(need.key)

    async def aclose(self) -> None:
        """Close what the ledger has opened."""
        await self._ledger.aclose()

    # -- the line ------------------------------------------------------------------------------------------

    def _ahead(self, needs: Sequence[Need]) -> Lack | None:
        """The first need for which others wait already, so that it is not one's turn."""
        need = next((need for need in needs if need.key in self._lines), None)
        if need is None:
            return None
        if not need.quota.rate:
            return Lack(need, None)
        line = self._lines[need.key]
        more = sum(waiter.need.amount for waiter in line) - line[0].need.amount + need.amount
        return Lack(need, max(line[0].due - self._clock.monotonic(), 0.0) + more / need.quota.rate)

    async def _wait(self, needs: Sequence[Need], lease: str, lack: Lack, deadline: float) -> None:
        waiter = _Waiter(lack.need, self._due(lack))
        self.waiting += 1
        self._join(waiter)
        try:
            while await self._is_due(waiter, deadline):
                found = await self._ledger.take(needs, lease)
                if found is None:
                    return
                lack = found
                if lack.need.key != waiter.need.key:
                    self._leave(waiter)
                    waiter.need = lack.need
                    self._join(waiter)
                waiter.due = self._due(lack)
        finally:
            self.waiting -= 1
            self._leave(waiter)
        raise self._refusal(self._ahead((waiter.need,)) or self._as_of_now(lack, waiter.due))

    def _as_of_now(self, lack: Lack, due: float) -> Lack:
        return lack if lack.wait is None else Lack(lack.need, max(due - self._clock.monotonic(), 0.0))

    async def _is_due(self, waiter: _Waiter, deadline: float) -> bool:
        """Wait for one's turn; False where the time is over."""
        while True:
            waiter.moved.clear()
            is_first = self._lines[waiter.need.key][0] is waiter
            now = self._clock.monotonic()
            if is_first and now >= waiter.due:
                return True
            if now >= deadline:
                return False
            timer = self._clock.call_later(min(waiter.due if is_first else inf, deadline) - now, waiter.moved.set)
            try:
                await waiter.moved.wait()
            finally:
                timer.cancel()

    def _due(self, lack: Lack) -> float:
        return self._clock.monotonic() + (self._ledger.poll if lack.wait is None else lack.wait)

    def _join(self, waiter: _Waiter) -> None:
        self._lines.setdefault(waiter.need.key, deque()).append(waiter)

    def _leave(self, waiter: _Waiter) -> None:
        key = waiter.need.key
        line = self._lines[key]
        was_first = line[0] is waiter
        line.remove(waiter)
        if not line:
            del self._lines[key]
        elif was_first:
            self._call_first(key)

    def _call_first(self, key: str) -> None:
        """Let who stands first in line look again at once."""
        if key in self._lines:
            first = self._lines[key][0]
            first.due = self._clock.monotonic()
            first.moved.set()

    def _refusal(self, lack: Lack) -> RateLimitedError:
        need, wait = lack.need, lack.wait
        self.refused[need.limit] += 1
        if wait == inf:
            return RateLimitedError(
                f"the limit {need.limit!r} allows {need.quota.amount:g} at once, and this takes {need.amount:g}"
            )
        wait = PLACE_WAIT if wait is None else wait
        return RateLimitedError(
            f"the limit {need.limit!r} is reached; try again in {max(wait, 0.1):.1f} s", retry_after=wait
        )
