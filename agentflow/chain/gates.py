"""What may stand before the steps of a run: a gate that lets each through, now or after a wait, or refuses it.

The chain asks and says how it went; what is counted, and when it is too much, is the gate's to know. Without a gate
nothing is asked.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, TypeAlias

from agentflow.errors import AgentflowError, RateLimitedError, ToolUnavailableError
from agentflow.events import ErrorInfo, ToolStatus
from agentflow.streams import Clock
from agentflow.tools.execution import ToolOutcome
from agentflow.tools.registry import Tool

# How a step went: "failed" where what it called was not well, "void" where that tells nothing of what it called.
Verdict: TypeAlias = Literal["ok", "failed", "void"]
Warn: TypeAlias = Callable[[str, str, dict[str, Any]], None]

_LEAST_TIME = 0.001  # seconds: what a tool is left when all its time went by before the gate

_UNAVAILABLE = (
    "The service behind {tool} has failed too often and is not called for now, so there is no result."
    " Do not invent one; say that this is not available now."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What is about to be done, of which agent and for whom: a run begins, a model or a tool is called.

    `tokens` is what a model is expected to read; `timeout` the seconds that a wait may take at most, None for as long
    as the gate likes. `warn` notes something in the run's log: a code, a message, data.
    """

    kind: Literal["run", "model", "tool"]
    agent: str
    user_id: str | None
    provider: str = ""
    model: str = ""
    tool: str = ""
    tokens: int = 0
    timeout: float | None = None
    warn: Warn


class Pass(Protocol):
    """A step that was let through."""

    def leave(self, verdict: Verdict = "void", seconds: float = 0.0, tokens: int | None = None) -> None:
        """The step is over. It took `seconds` to answer and used `tokens`; None leaves the estimate. Counts once."""
        ...


class Gate(Protocol):
    """Stands before the steps of all runs of the agents that have it."""

    async def enter(self, step: Step) -> Pass:
        """Let the step through, maybe after a wait; whoever is let through leaves. A cancel leaves nothing behind.

        Raises `RateLimitedError` for what would be too much, and for a service that is not called for now
        `ModelUnavailableError` or `ToolUnavailableError`.
        """
        ...

    def readmit(self, step: Step) -> Pass:
        """Let a run go on that was let in before: it is counted, and never refused."""
        ...


class Admission:
    """The place that one run takes up: given back while it waits for people, and at its end."""

    def __init__(self, gate: Gate | None, step: Step) -> None:
        self._gate = gate
        self._step = step
        self._pass: Pass | None = None

    async def enter(self) -> None:
        """Let the run begin. Raises what `Gate.enter` does."""
        if self._gate is not None:
            self._pass = await self._gate.enter(self._step)

    def resume(self) -> None:
        """Let it go on: after people have decided, or after the death of another process."""
        if self._gate is not None and self._pass is None:
            self._pass = self._gate.readmit(self._step)

    def leave(self) -> None:
        """It waits for people, or is over."""
        if self._pass is not None:
            self._pass.leave()
            self._pass = None


async def execute_behind(
    gate: Gate, step: Step, tool: Tool, clock: Clock, execute: Callable[[Tool], Awaitable[ToolOutcome]]
) -> ToolOutcome:
    """What `execute` gives for the tool, once the gate lets the call through; else what the model is told instead.

    The wait counts in the tool's time. A refused call was not run, and is not tried again by itself.
    """
    began = clock.monotonic()
    try:
        passed = await gate.enter(step)
    except RateLimitedError as error:
        return _refusal("rate_limited", error, f"[error: {error.kind}]\n{error}")
    except ToolUnavailableError as error:
        return _refusal("degraded", error, f"[degraded]\n{tool.degraded or _UNAVAILABLE.format(tool=tool.name)}")
    outcome: ToolOutcome | None = None
    try:
        waited = clock.monotonic() - began
        outcome = await execute(replace(tool, timeout=max(tool.timeout - waited, _LEAST_TIME)) if waited else tool)
    finally:
        if outcome is None:
            passed.leave()
        else:
            passed.leave(_verdict(outcome), outcome.duration_ms / 1000)
    return outcome


def _refusal(status: ToolStatus, error: AgentflowError, result: str) -> ToolOutcome:
    return ToolOutcome(ok=False, result=result, status=status, error=ErrorInfo(kind=error.kind, message=str(error)))


def _verdict(outcome: ToolOutcome) -> Verdict:
    """A tool that says no, or stumbles over its own code, tells nothing of the service behind it."""
    if outcome.ok:
        return "ok"
    return "failed" if outcome.cause else "void"
