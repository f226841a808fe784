"""Circuit breakers: whether a service that has failed or dawdled too often is called, and when it is tried again.

They call nothing and wait for nothing; where they stand is in `gates`.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from agentflow.chain.gates import Verdict
from agentflow.streams import Clock

BreakerState: TypeAlias = Literal["closed", "half_open", "open"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerPolicy:
    """When a breaker opens, and when it closes again.

    It opens when, of the last `window` calls and at least `minimum`, the share `failures` has failed, or the share
    `slow` took longer than `slow_after` seconds to answer. After `open_for` seconds up to `probes` calls are let
    through: when all of them are well it closes, and with the first that is not it is open again.
    """

    window: int = 20
    minimum: int = 10
    failures: float = 0.5
    slow: float = 0.8
    slow_after: float = 30.0
    open_for: float = 30.0
    probes: int = 2


@dataclass(frozen=True, slots=True)
class Change:
    """A breaker went from one state to another. `failed` and `slow` are the shares of its window that made it."""

    name: str
    previous: BreakerState
    current: BreakerState
    failed: float
    slow: float


class Breaker:
    """One service's. Pure: `now` is in seconds of any clock that does not go backwards."""

    def __init__(self, name: str, policy: BreakerPolicy) -> None:
        self.name = name
        self.state: BreakerState = "closed"
        self._policy = policy
        self._calls: deque[tuple[bool, bool]] = deque(maxlen=policy.window)  # of each, whether it failed, was slow
        self._opened_at = 0.0
        self._period = 0  # counts the states it has been in: what was begun in another tells nothing any more
        self._probing = 0
        self._well = 0

    def enter(self, now: float) -> tuple[int | None, float]:
        """What `leave` needs, if a call may be made; else None and the seconds after which to ask again."""
        if self.state == "open":
            left = self._opened_at + self._policy.open_for - now
            if left > 0:
                return None, left
            self._go("half_open")
        if self.state == "half_open":
            if self._probing + self._well >= self._policy.probes:
                return None, min(1.0, self._policy.open_for)
            self._probing += 1
        return self._period, 0.0

    def leave(self, period: int, verdict: Verdict, seconds: float, now: float) -> None:
        """How a call went that `enter` has let through in `period`."""
        if period != self._period:
            return
        is_slow = seconds > self._policy.slow_after
        if self.state == "half_open":
            self._probed(verdict, now, is_slow=is_slow)
        elif verdict != "void":
            self._calls.append((verdict == "failed", is_slow))
            failed, slow = self.shares()
            enough = len(self._calls) >= min(self._policy.minimum, self._policy.window)
            if enough and (failed >= self._policy.failures or slow >= self._policy.slow):
                self._open(now)

    def shares(self) -> tuple[float, float]:
        """The shares of the window that have failed, and that were slow."""
        count = len(self._calls) or 1
        return sum(failed for failed, _ in self._calls) / count, sum(slow for _, slow in self._calls) / count

    def _probed(self, verdict: Verdict, now: float, *, is_slow: bool) -> None:
        self._probing -= 1
        if verdict == "failed" or (verdict == "ok" and is_slow):
            self._open(now)
        elif verdict == "ok":
            self._well += 1
            if self._well >= self._policy.probes:
                self._calls.clear()
                self._go("closed")

    def _open(self, now: float) -> None:
        self._opened_at = now
        self._go("open")

    def _go(self, state: BreakerState) -> None:
        self.state = state
        self._period += 1
        self._probing = self._well = 0


class Breakers:
    """The breakers of all services, made when they are first called. `on_change` hears of every change."""

    def __init__(
        self, policy: BreakerPolicy, clock: Clock, *, on_change: Callable[[Change], None] = lambda _: None
    ) -> None:
        self._policy = policy
        self._clock = clock
        self._breakers: dict[str, Breaker] = {}
        self.on_change = on_change

    def enter(self, name: str, warn: Callable[[Change], None]) -> tuple[int | None, float]:
        """See `Breaker.enter`; `warn` hears of what this very call has changed."""
        breaker = self._breakers.get(name)
        if breaker is None:
            breaker = self._breakers[name] = Breaker(name, self._policy)
        previous = breaker.state
        entered = breaker.enter(self._clock.monotonic())
        self._tell(breaker, previous, warn)
        return entered

    def leave(self, name: str, period: int, verdict: Verdict, seconds: float, warn: Callable[[Change], None]) -> None:
        """See `Breaker.leave`."""
        breaker = self._breakers[name]
        previous = breaker.state
        breaker.leave(period, verdict, seconds, self._clock.monotonic())
        self._tell(breaker, previous, warn)

    def states(self) -> dict[str, BreakerState]:
        """The state of each by its name; may be asked on any thread."""
        return {name: breaker.state for name, breaker in tuple(self._breakers.items())}

    def snapshot(self) -> list[dict[str, Any]]:
        """Each breaker's name, state, and shares of failed and of slow calls."""
        return [
            {"name": name, "state": breaker.state, "failed": breaker.shares()[0], "slow": breaker.shares()[1]}
            for name, breaker in sorted(self._breakers.items())
        ]

    def _tell(self, breaker: Breaker, previous: BreakerState, warn: Callable[[Change], None]) -> None:
        if breaker.state != previous:
            change = Change(breaker.name, previous, breaker.state, *breaker.shares())
            warn(change)
            self.on_change(change)
