"""The gate of an application: which limits and breakers stand before which steps of its agents' runs.

How limits are counted is in `rate_limit`, when a service is given up in `breaker`; the limits of a server's keys are in
the transports.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from agentflow.chain.gates import Pass, Step, Verdict
from agentflow.errors import ModelUnavailableError, ToolUnavailableError
from agentflow.observability.breaker import BreakerPolicy, Breakers, BreakerState, Change
from agentflow.observability.rate_limit import Grant, Limiter, MemoryLedger, Need, Quota
from agentflow.settings import LimitSettings, RateSettings
from agentflow.streams import Clock, LoopClock

# What of a rule counts before which step, by whom the rule is for.
_ALL = {"run": ("requests", "concurrent"), "model": ("tokens",), "tool": ("calls",)}
_COUNTED: Mapping[str, Mapping[str, Sequence[str]]] = {
    "all": _ALL,
    "user": _ALL,
    "agent": _ALL,
    "provider": {"model": ("requests", "tokens", "concurrent")},
    "model": {"model": ("requests", "tokens", "concurrent")},
    "tool": {"tool": ("requests", "concurrent")},
}


@dataclass(frozen=True, slots=True)
class Rule:
    """A limit as `limits.rates.<name>` says it: for whom, and how much of what."""

    name: str
    per: str
    only: tuple[str, ...]
    quotas: Mapping[str, Quota]

    @classmethod
    def of(cls, name: str, rate: RateSettings) -> "Rule":
        """The rule that a section of the settings is."""
        quotas = {kind: Quota.parse(text) for kind in ("requests", "tokens", "calls") if (text := getattr(rate, kind))}
        places = {kind: Quota(count) for kind in ("concurrent", "connections") if (count := getattr(rate, kind))}
        return cls(name, rate.per, rate.only, quotas | places)

    def needs(self, kinds: Sequence[str], subject: str, amounts: Mapping[str, float]) -> list[Need]:
        """What the rule asks of this subject; of what stands in no `amounts`, one."""
        if self.only and not any(fnmatchcase(subject, pattern) for pattern in self.only):
            return []
        return [
            Need(f"{self.name}.{kind}", subject, self.quotas[kind], amounts.get(kind, 1.0))
            for kind in kinds
            if kind in self.quotas
        ]


class Gates:
    """See `chain.gates.Gate`. One is shared by all agents of an application: `Agent(gate=...)`.

    A limit is waited for up to `wait` seconds. A call that a breaker refuses takes nothing of any limit.
    """

    def __init__(
        self,
        rules: Sequence[Rule],
        limiter: Limiter,
        breakers: Breakers | None = None,
        *,
        wait: float = 10.0,
    ) -> None:
        self._rules = tuple(rule for rule in rules if rule.per in _COUNTED)
        self._limiter = limiter
        self._wait = wait
        self.breakers = breakers

    async def enter(self, step: Step) -> Pass:
        """See `Gate`."""
        breaking = self._enter_breaker(step)
        try:
            patience = self._wait if step.timeout is None else min(self._wait, step.timeout)
            grant = await self._limiter.acquire(self._needs(step), patience)
        except BaseException:  # refused, cancelled or broken: the breaker must not wait for it
            breaking("void", 0.0)
            raise
        return _Pass(grant, breaking)

    def readmit(self, step: Step) -> Pass:
        """See `Gate`."""
        places = [need for need in self._needs(step) if not need.quota.rate]
        return _Pass(self._limiter.hold(places), _no_breaker)

    @property
    def waiting(self) -> int:
        """How many steps wait for a limit."""
        return self._limiter.waiting

    def states(self) -> Mapping[str, BreakerState]:
        """The state of each breaker by its name; may be asked on any thread."""
        return self.breakers.states() if self.breakers is not None else {}

    def snapshot(self) -> dict[str, Any]:
        """How many wait, how often each limit has refused, and the breakers."""
        return {
            "waiting": self._limiter.waiting,
            "refused": dict(self._limiter.refused),
            "breakers": self.breakers.snapshot() if self.breakers is not None else [],
        }

    async def aclose(self) -> None:
        """Close what the limits have opened."""
        await self._limiter.aclose()

    def _needs(self, step: Step) -> list[Need]:
        amounts = {"tokens": float(step.tokens)}
        return [
            need
            for rule in self._rules
            for need in rule.needs(_COUNTED[rule.per].get(step.kind, ()), _subject(rule.per, step), amounts)
        ]

    def _enter_breaker(self, step: Step) -> Callable[[Verdict, float], None]:
        """Ask the breaker of what is called; how it went is to be told to what this gives."""
        breakers = self.breakers
        if breakers is None or step.kind == "run":
            return _no_breaker
        name = f"{step.kind}:{step.provider or step.tool}"
        warn = partial(_warn, step)
        period, left = breakers.enter(name, warn)
        if period is None:
            raise _unavailable(step, left)
        return lambda verdict, seconds: breakers.leave(name, period, verdict, seconds, warn)


class _Pass:
    def __init__(self, grant: Grant, breaking: Callable[[Verdict, float], None]) -> None:
        self._grant = grant
        self._breaking = breaking
        self._left = False

    def leave(self, verdict: Verdict = "void", seconds: float = 0.0, tokens: int | None = None) -> None:
        if self._left:
            return
        self._left = True
        self._grant.release()
        if tokens is not None:
            self._grant.settle("tokens", tokens)
        self._breaking(verdict, seconds)


def build_gates(limits: LimitSettings, clock: Clock | None = None) -> Gates | None:
    """The gate that the settings describe; None where they set no limit and no breaker. Raises `ConfigError`."""
    rules = [Rule.of(name, rate) for name, rate in limits.rates.items() if rate.per in _COUNTED]
    if not rules and not limits.breaker.window:
        return None
    clock = clock if clock is not None else LoopClock()
    breakers = None
    if limits.breaker.window:
        breakers = Breakers(BreakerPolicy(**dict(limits.breaker)), clock)
    return Gates(rules, build_limiter(limits, clock), breakers, wait=limits.wait)


def build_limiter(limits: LimitSettings, clock: Clock) -> Limiter:
    """A limiter that counts where the settings say: in this process, or on a Redis server. Raises `ConfigError`."""
    if limits.url is None:
        return Limiter(MemoryLedger(clock), clock, max_waiting=limits.waiting)
    from agentflow.observability.rate_limit_redis import RedisLedger  # needs the extra `redis`

    return Limiter(RedisLedger(limits.url, clock, when_down=limits.when_down), clock, max_waiting=limits.waiting)


def _subject(per: str, step: Step) -> str:
    match per:
        case "user":
            return step.user_id or ""
        case "agent" | "provider" | "tool":
            return str(getattr(step, per))
        case "model":
            return f"{step.provider}/{step.model}"
        case _:
            return ""


def _no_breaker(verdict: Verdict, seconds: float) -> None:
    """Nothing breaks."""


def _warn(step: Step, change: Change) -> None:
    message = f"the breaker of {change.name!r} is {change.current.replace('_', '-')}, and was {change.previous}"
    shares = {"failed": round(change.failed, 3), "slow": round(change.slow, 3)}
    data = {"name": change.name, "previous": change.previous, "current": change.current, **shares}
    step.warn("breaker", message, data)


def _unavailable(step: Step, left: float) -> ModelUnavailableError | ToolUnavailableError:
    name = step.provider or step.tool
    what = f"{name!r} has failed too often and is not called for another {left:.1f} s"
    if step.kind == "tool":
        return ToolUnavailableError(f"the tool {what}")
    error = ModelUnavailableError(f"the provider {what}", provider=step.provider)
    error.retry_after = left
    return error
