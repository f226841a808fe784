"""What the clients of a server may take up: requests, open connections, runs at a time and tokens, each key by itself.

The rules are those of `limits.rates` for a "key"; without keys all clients are one. Nobody waits here: what is over a
limit is refused. What the runs of an agent may take up, whoever asks for them, is its gate's to say.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from agentflow.chain import AgentChain
from agentflow.errors import AgentflowError
from agentflow.events import AgentEvent, ModelCompleteEvent, State, StateEvent
from agentflow.observability.gates import Rule, build_limiter
from agentflow.observability.rate_limit import Grant, Limiter, Need
from agentflow.settings import LimitSettings
from agentflow.streams import Clock, TaskOwner
from agentflow.transports.auth import Caller


@dataclass(slots=True)
class _Run:
    """A run that has not ended. `place` is what it takes up, nothing while it waits for people."""

    caller: Caller
    place: Grant | None


class Quotas:
    """What is taken up now. All that is refused raises `RateLimitedError`; `owner` owns the tasks that watch runs."""

    def __init__(self, rules: tuple[Rule, ...], limiter: Limiter, owner: TaskOwner) -> None:
        self._rules = rules
        self._limiter = limiter
        self._owner = owner
        self._runs: dict[str, _Run] = {}

    @asynccontextmanager
    async def request(self, caller: Caller) -> AsyncIterator[None]:
        """One request, and an open connection for as long as this lasts."""
        grant = await self._limiter.acquire(self._needs(caller, "requests", "connections"))
        try:
            yield
        finally:
            grant.release()

    async def command(self, caller: Caller) -> None:
        """One more request over a connection that is open."""
        await self._limiter.acquire(self._needs(caller, "requests"))

    async def run(self, caller: Caller, start: Callable[[], AgentChain]) -> AgentChain:
        """Begin a run: it takes up a place until it ends, but not while it waits for people.

        What it says and reads is charged as it comes, so that the key has to have tokens left, but not how many.
        """
        place = await self._limiter.acquire(self._needs(caller, "concurrent", "tokens", tokens=0.0))
        try:
            chain = start()
        except BaseException:  # whatever it was, no run has the place
            place.release()
            raise
        if chain.run_id in self._runs:  # it has waited for this very message
            place.release()
        else:
            self._runs[chain.run_id] = _Run(caller, place)
            self._owner.spawn(self._watch(chain), name=f"agentflow quota of {chain.run_id}")
        return chain

    def see(self, event: AgentEvent) -> None:
        """An event of any run, from the bus."""
        run = self._runs.get(event.run_id)
        if run is None:
            return
        if isinstance(event, ModelCompleteEvent):
            for need in self._needs(run.caller, "tokens"):
                self._limiter.charge(need, event.usage.input_tokens + event.usage.output_tokens)
        elif isinstance(event, StateEvent) and event.chain_id == event.run_id:
            if event.current is State.SUSPENDED:
                self._leave(run)
            elif event.previous is State.SUSPENDED and run.place is None:
                run.place = self._limiter.hold(self._needs(run.caller, "concurrent"))

    def snapshot(self) -> dict[str, Any]:
        """How often each limit has refused."""
        return {"waiting": 0, "refused": dict(self._limiter.refused), "breakers": []}

    async def aclose(self) -> None:
        """Close what the limits have opened."""
        await self._limiter.aclose()

    async def _watch(self, chain: AgentChain) -> None:
        try:
            with suppress(AgentflowError):  # it could not begin, or not be written: who reads it is told
                await chain
        finally:
            self._leave(self._runs.pop(chain.run_id))

    @staticmethod
    def _leave(run: _Run) -> None:
        if run.place is not None:
            run.place.release()
            run.place = None

    def _needs(self, caller: Caller, *kinds: str, **amounts: float) -> list[Need]:
        return [need for rule in self._rules for need in rule.needs(kinds, caller.key_id or "", amounts)]


def build_quotas(limits: LimitSettings, clock: Clock, owner: TaskOwner) -> Quotas | None:
    """What the settings let each key take up; None where they do not limit it. Raises `ConfigError`."""
    rules = tuple(Rule.of(name, rate) for name, rate in limits.rates.items() if rate.per == "key")
    return Quotas(rules, build_limiter(limits, clock), owner) if rules else None
