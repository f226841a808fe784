"""How a run is traced, as far as its chain goes: what the chain asks of whoever makes spans.

It makes no span and knows no telemetry library. Where nobody traces, a run has a trace id of its own and nothing more.
"""

import secrets
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any, Protocol

from agentflow.bus import EventBus
from agentflow.messages import Usage
from agentflow.models.base import ChatModel, ModelRequest
from agentflow.streams import Clock
from agentflow.tools.registry import ToolRegistry


@dataclass(slots=True, kw_only=True)
class SummaryCall:
    """A model call for a summary, which is made beside a run and stands in no log; filled in while it goes on.

    `seconds` is the time that it took, `first_chunk` that to its first text. `error` is the kind of what it failed
    with, "cancelled" for one that was broken off.
    """

    agent: str
    session_id: str
    provider: str
    model: str
    request: ModelRequest
    seconds: float = 0.0
    first_chunk: float | None = None
    finish_reason: str | None = None
    usage: Usage = field(default_factory=Usage)
    error: str | None = None


class RunTrace(Protocol):
    """The trace of one run in this process. Nothing here raises, whatever becomes of the telemetry.

    What happens in the run it learns from the bus. The contexts it gives are for tasks: code in them finds the span of
    what it does as the current one, and None means the context of whoever starts the task.
    """

    @property
    def trace_id(self) -> str:
        """32 hex digits, the same in every event of the run; not to be asked for before `begin`."""
        ...

    def begin(self, *, run_id: str, agent: str, session_id: str, model: str, clock: Clock) -> None:
        """The run begins, or goes on after the death of the process that began it."""
        ...

    def know(self, chain_id: str, tools: ToolRegistry, models: Sequence[ChatModel]) -> None:
        """What a chain of the run may call."""
        ...

    def carried(self) -> dict[str, str]:
        """What the run's log has to hold so that another process can go on with the trace: fields of its metadata."""
        ...

    def in_run(self) -> Context | None:
        """Where the run is opened."""
        ...

    def in_chat(self, chain_id: str, request: ModelRequest) -> Context | None:
        """Where the chain's open model call runs; `request` is what it sends."""
        ...

    def in_call(self, call_id: str) -> Context | None:
        """Where an attempt of the tool call runs. Threads that work for it get a copy."""
        ...

    def memory(self, operation: str) -> AbstractContextManager[None]:
        """Something done with what is remembered, such as "search_memory", for as long as the block takes."""
        ...

    def summary_call(self, call: SummaryCall) -> AbstractContextManager[None]:
        """A model call that is made in the block, below what is done with memory; `call` tells all at its end."""
        ...

    def close(self) -> None:
        """Nothing more of the run comes here: it has ended, or is left to another process."""
        ...


class Tracer(Protocol):
    """Whoever makes spans of runs."""

    def trace(self, bus: EventBus, metadata: Mapping[str, Any], earlier: str | None) -> RunTrace:
        """The trace of a run that publishes on `bus`, below what is being traced where this is called.

        `metadata` are the run's. `earlier` is the trace id of a run that another process has begun.
        """
        ...

    def incoming(self, headers: Mapping[str, str]) -> AbstractContextManager[None]:
        """Handle a request with these headers in the block: what it begins belongs to the trace that they name."""
        ...


@dataclass(frozen=True, slots=True)
class Untraced:
    """A run that nobody traces. See `RunTrace`."""

    trace_id: str = field(default_factory=lambda: secrets.token_hex(16))

    def begin(self, *, run_id: str, agent: str, session_id: str, model: str, clock: Clock) -> None:
        """Nothing to do."""

    def know(self, chain_id: str, tools: ToolRegistry, models: Sequence[ChatModel]) -> None:
        """Nothing to do."""

    def carried(self) -> dict[str, str]:
        """Nothing."""
        return {}

    def in_run(self) -> Context | None:
        """No context of its own."""
        return None

    def in_chat(self, chain_id: str, request: ModelRequest) -> Context | None:
        """No context of its own."""
        return None

    def in_call(self, call_id: str) -> Context | None:
        """No context of its own."""
        return None

    def memory(self, operation: str) -> AbstractContextManager[None]:
        """Nothing to do."""
        return nullcontext()

    def summary_call(self, call: SummaryCall) -> AbstractContextManager[None]:
        """Nothing to do."""
        return nullcontext()

    def close(self) -> None:
        """Nothing to do."""


@dataclass(slots=True)
class _Installed:
    tracer: Tracer | None = None


_installed = _Installed()


def install(tracer: Tracer | None) -> None:
    """Have all runs of this process that are made from now on traced by `tracer`; None: by nobody.

    For instrumentation, which comes before the application and has no agent to hand anything to.
    """
    _installed.tracer = tracer


def installed() -> Tracer | None:
    """Who traces the runs of this process."""
    return _installed.tracer


def new_trace(bus: EventBus, metadata: Mapping[str, Any], earlier: str | None = None) -> RunTrace:
    """The trace of a run that is made here and now; see `Tracer.trace`."""
    if _installed.tracer is not None:
        return _installed.tracer.trace(bus, metadata, earlier)
    return Untraced() if earlier is None else Untraced(earlier)


def incoming(headers: Mapping[str, str]) -> AbstractContextManager[None]:
    """See `Tracer.incoming`."""
    return nullcontext() if _installed.tracer is None else _installed.tracer.incoming(headers)
