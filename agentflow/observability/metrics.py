"""Metrics of agents: a fold of the events that their logs have accepted, recorded with OpenTelemetry's instruments.

Who exports them is nobody's business here: any meter will do. No label is an id; names that come from models or users
are told only as far as they are known, so that nobody outside decides how many series there are.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from opentelemetry.metrics import Meter
from reactivex import abc
from reactivex.disposable import CompositeDisposable, Disposable

from agentflow.agent import Agent
from agentflow.chain import AgentChain
from agentflow.chain.nesting import below
from agentflow.chain.tracing import SummaryCall
from agentflow.events import (
    TERMINAL_TYPES,
    AgentEvent,
    CancelledEvent,
    EventType,
    FailedEvent,
    ModelCompleteEvent,
    ModelStartEvent,
    TerminalEvent,
    ToolCompleteEvent,
    ToolErrorEvent,
    ToolStartEvent,
    WarningEvent,
)
from agentflow.messages import Usage
from agentflow.observability import semconv
from agentflow.observability.gates import Gates
from agentflow.observability.instruments import Instruments, Labels, observe
from agentflow.observability.semconv import Semconv
from agentflow.observability.store_timing import timed

UNKNOWN: Final = "unknown"  # stands for tools that no agent has
OTHER: Final = "other"  # stands for models beyond the first MAX_MODELS
MAX_MODELS: Final = 100
MAX_RUNS: Final = 10_000  # whose events are put together at once; the oldest goes

# A call that ends so has not run: its time is none.
_NOT_RUN: Final = frozenset({"unknown_tool", "invalid_arguments", "rejected", "loop", "limit"})


_BREAKER_STATES: Final = ("closed", "half_open", "open")


@dataclass(slots=True)
class _Call:
    """An open model call, with all its attempts. `began` is RFC 3339."""

    began: str
    labels: Labels
    named: Labels  # the same, as the conventions call them


@dataclass(slots=True)
class _Task:
    """A chain: an agent's work on one task."""

    agent: str
    began: str
    model_calls: int = 0
    tool_calls: int = 0
    call: _Call | None = None


@dataclass(slots=True)
class _Run:
    tasks: dict[str, _Task] = field(default_factory=dict)  # by their chains' ids
    below: dict[str, str] = field(default_factory=dict)  # the chains that open tool calls have called


class Metrics:
    """What agents do, as metrics of `meter`, from `attach` until what that gives is disposed.

    For use on the agents' loop; what is read when metrics are collected may be read on any thread.
    """

    def __init__(self, meter: Meter, agents: Sequence[Agent], *, conventions: Semconv = "0.1.0") -> None:
        self._agents = tuple(agents)
        self._record = Instruments(meter, conventions)
        self._runs: dict[str, _Run] = {}
        self._models: set[tuple[str, str]] = set()
        self._tools: set[str] = set()
        self._attached = False
        self._observe(meter)

    def attach(self) -> abc.DisposableBase:
        """Count from now on what happens on the agents' buses and in their stores."""
        self._attached = True
        for agent in self._agents:
            agent.summary_calls.append(self._summary_call)
        buses = {id(agent.bus): agent.bus for agent in self._agents}
        stores = {id(agent.store): agent.store for agent in self._agents}
        return CompositeDisposable(
            [bus.attach(self.see, name="metrics") for bus in buses.values()]
            + [timed(store, self._stored) for store in stores.values()]
            + [Disposable(self._detach)]
        )

    def lag(self, seconds: float) -> None:
        """The event loop came so late to what was due."""
        self._record.loop_lag.record(seconds)

    def see(self, event: AgentEvent) -> None:
        """An event that a log has accepted."""
        take = _TAKES.get(event.type)
        if take is not None:
            run = self._run(event.run_id)
            take(self, run, _task(run, event), event)

    def _detach(self) -> None:
        self._attached = False
        for agent in self._agents:
            agent.summary_calls.remove(self._summary_call)

    def _stored(self, operation: str, seconds: float) -> None:
        self._record.store.record(seconds, {"op": operation})

    def _run(self, run_id: str) -> _Run:
        run = self._runs.get(run_id)
        if run is None:
            if len(self._runs) >= MAX_RUNS:
                del self._runs[next(iter(self._runs))]
            run = self._runs[run_id] = _Run()
        return run

    # -- what each kind of event changes -------------------------------------------------------------------

    def _begin(self, run: _Run, task: _Task, event: AgentEvent) -> None:
        """A chain is known by its first event: there is no more to do."""

    def _model_start(self, run: _Run, task: _Task, event: ModelStartEvent) -> None:
        if task.call is None:
            task.model_calls += 1
        began = task.call.began if task.call is not None else event.ts
        task.call = self._call(began, event.provider, event.model, task.agent)

    def _call(self, began: str, provider: str, model: str, agent: str) -> _Call:
        provider, model = self._model(provider, model)
        named = {
            semconv.OPERATION: semconv.CHAT,
            semconv.PROVIDER: provider,
            semconv.REQUEST_MODEL: model,
            semconv.AGENT: agent,
        }
        return _Call(began, {"provider": provider, "model": model}, named)

    def _model_complete(self, run: _Run, task: _Task, event: ModelCompleteEvent) -> None:
        call, task.call = task.call, None
        if call is None:  # its beginning was not seen
            return
        first = None if event.first_chunk_ms is None else event.first_chunk_ms / 1000
        self._record.model_duration.record(event.duration_ms / 1000, call.labels)
        self._answered(call, _seconds(call.began, event.ts), event.usage, first)

    def _summary_call(self, asked: SummaryCall) -> None:
        """A model call that no log has, when it has ended."""
        call = self._call("", asked.provider, asked.model, asked.agent)
        if asked.error is not None:
            self._break_off(call, asked.seconds, asked.error)
            return
        self._record.model_duration.record(asked.seconds, call.labels)
        self._answered(call, asked.seconds, asked.usage, asked.first_chunk)

    def _answered(self, call: _Call, seconds: float, usage: Usage, first: float | None) -> None:
        record = self._record
        if first is not None:
            record.first_chunk.record(first, call.labels)
        if record.genai is not None:
            record.genai.duration.record(seconds, call.named)
            tokens = {**call.named, semconv.MODALITY: "text"}
            record.genai.input_tokens.add(usage.input_tokens, tokens)
            record.genai.output_tokens.add(usage.output_tokens, tokens)
            record.genai.call_input_tokens.record(usage.input_tokens, call.named)
            record.genai.call_output_tokens.record(usage.output_tokens, call.named)
            if first is not None:
                record.genai.first_chunk.record(first, call.named)
        if record.older is not None:
            record.older.duration.record(seconds, call.named)
            record.older.tokens.record(usage.input_tokens, {**call.named, semconv.OLD_KIND: "input"})
            record.older.tokens.record(usage.output_tokens, {**call.named, semconv.OLD_KIND: "output"})
            if first is not None:
                record.older.first_chunk.record(first, call.named)

    def _break_off(self, call: _Call, seconds: float, error: str) -> None:
        """A model call that was never answered."""
        labels = {**call.named, semconv.ERROR_TYPE: error}
        if self._record.genai is not None:
            self._record.genai.duration.record(seconds, labels)
            tokens = {**labels, semconv.MODALITY: UNKNOWN}
            self._record.genai.input_tokens.add(0, tokens)
            self._record.genai.output_tokens.add(0, tokens)
        if self._record.older is not None:
            self._record.older.duration.record(seconds, labels)

    def _tool_start(self, run: _Run, task: _Task, event: ToolStartEvent) -> None:
        if event.child_chain_id is not None:
            run.below[event.call_id] = event.child_chain_id

    def _tool_end(self, run: _Run, task: _Task, event: ToolCompleteEvent | ToolErrorEvent) -> None:
        record, tool = self._record, self._tool(event.tool)
        status = event.status if isinstance(event, ToolErrorEvent) else "success"
        if isinstance(event, ToolErrorEvent) and event.will_retry:
            record.tool_retries.add(1, {"tool": tool})
        else:
            task.tool_calls += 1
            record.tool_calls.add(1, {"tool": tool, "status": status})
        if status not in _NOT_RUN and not (isinstance(event, ToolCompleteEvent) and event.reused_from is not None):
            record.tool_duration.record(event.duration_ms / 1000, {"tool": tool})
            if record.genai is not None:
                named = {semconv.OPERATION: semconv.EXECUTE_TOOL, semconv.TOOL: tool, semconv.AGENT: task.agent}
                if status != "success":
                    named[semconv.ERROR_TYPE] = status
                record.genai.tool_duration.record(event.duration_ms / 1000, named)
        called = run.tasks.pop(run.below.pop(event.call_id, ""), None)
        if called is not None:
            self._end_task(called, event.ts, None if status == "success" else status)

    def _end_task(self, task: _Task, ts: str, error: str | None) -> None:
        if task.call is not None:
            self._break_off(task.call, _seconds(task.call.began, ts), error or OTHER)
        if self._record.genai is None:
            return
        labels = {semconv.OPERATION: semconv.INVOKE_AGENT, semconv.AGENT: task.agent}
        if error is not None:
            labels[semconv.ERROR_TYPE] = error
        self._record.genai.agent_duration.record(_seconds(task.began, ts), labels)
        self._record.genai.agent_inference_calls.record(task.model_calls, labels)
        self._record.genai.agent_tool_calls.record(task.tool_calls, labels)

    def _warning(self, run: _Run, task: _Task, event: WarningEvent) -> None:
        self._record.warnings.add(1, {"code": event.code})
        if event.code == "arguments_corrected":
            self._record.corrections.add(1, {"tool": self._tool(event.data.get("tool"))})

    def _end(self, run: _Run, task: _Task, event: TerminalEvent) -> None:
        self._runs.pop(event.run_id, None)
        labels = {"agent": event.path[0], "outcome": event.type.value}
        self._record.runs.add(1, labels)
        self._record.run_duration.record(event.duration_ms / 1000, labels)
        error = _error(event)
        for other in reversed(run.tasks.values()):  # what was still open below the root ends with it
            self._end_task(other, event.ts, error)
        if isinstance(event, CancelledEvent):
            waited = next((chain.ending_for for chain in self._live() if chain.run_id == event.run_id), None)
            if waited is not None:
                self._record.cancel_latency.record(waited)

    # -- labels --------------------------------------------------------------------------------------------

    def _model(self, provider: str, model: str) -> tuple[str, str]:
        if (provider, model) in self._models:
            return provider, model
        if len(self._models) >= MAX_MODELS:
            return OTHER, OTHER
        self._models.add((provider, model))
        return provider, model

    def _tool(self, name: Any) -> str:
        """The tool's name, if an agent has one of that name: models invent others."""
        if name in self._tools:
            return str(name)
        if not any(name in agent.tools for agent in self._everyone()):
            return UNKNOWN
        self._tools.add(name)
        return str(name)

    # -- what is looked at when metrics are collected ------------------------------------------------------

    def _observe(self, meter: Meter) -> None:
        calls, threads = "Calls that wait for a thread of a pool.", "Threads of a pool that run a call."
        hung = "Threads of a pool that run a call which nobody waits for any more."
        observe(meter, "gauge", "agentflow.runs_in_flight", "{run}", "Runs that have not ended.", self._in_flight)
        observe(meter, "gauge", "agentflow.thread_pool_queue", "{call}", calls, lambda: self._pools("queued"))
        observe(meter, "gauge", "agentflow.thread_pool_busy", "{thread}", threads, lambda: self._pools("busy"))
        observe(meter, "gauge", "agentflow.thread_pool_abandoned", "{thread}", hung, lambda: self._pools("abandoned"))
        waiting, state = "Steps that wait for a limit.", "Whether a provider or tool is called: 0 yes, 1 tried, 2 no."
        observe(meter, "gauge", "agentflow.limiter_waiting", "{step}", waiting, self._waiting)
        observe(meter, "gauge", "agentflow.breaker_state", "{state}", state, self._breakers)

    def _in_flight(self) -> Iterable[tuple[float, Labels]]:
        return [(sum(1 for _ in agent.live()), {"agent": agent.name}) for agent in self._agents if self._attached]

    def _pools(self, what: str) -> Iterable[tuple[float, Labels]]:
        sums: dict[str, int] = {}
        if self._attached:
            for pool in (pool for agent in self._everyone() for pool in agent.pools):
                sums[pool.name] = sums.get(pool.name, 0) + getattr(pool, what)
        return [(value, {"pool": name}) for name, value in sums.items()]

    def _waiting(self) -> Iterable[tuple[float, Labels]]:
        return [(sum(gate.waiting for gate in gates), {})] if (gates := self._gates()) else []

    def _breakers(self) -> Iterable[tuple[float, Labels]]:
        states = {name: state for gate in self._gates() for name, state in gate.states().items()}
        return [(_BREAKER_STATES.index(state), {"breaker": name}) for name, state in states.items()]

    def _gates(self) -> list[Gates]:
        gates = {id(agent.gate): agent.gate for agent in self._agents if self._attached}
        return [gate for gate in gates.values() if isinstance(gate, Gates)]

    def _everyone(self) -> Iterator[Agent]:
        """The agents, and those below them, each once."""
        agents = {id(agent): agent for agent in self._agents}
        for agent in self._agents:
            agents |= {id(other): other for other in below(agent) if isinstance(other, Agent)}
        return iter(agents.values())

    def _live(self) -> Iterator[AgentChain]:
        return (chain for agent in self._agents for chain in agent.live())


def _task(run: _Run, event: AgentEvent) -> _Task:
    task = run.tasks.get(event.chain_id)
    if task is None:
        task = run.tasks[event.chain_id] = _Task(event.path[-1], event.ts)
    return task


def _error(event: TerminalEvent) -> str | None:
    match event:
        case FailedEvent():
            return event.error.kind
        case CancelledEvent():
            return "cancelled"
        case _:
            return None


def _seconds(begin: str, end: str) -> float:
    return (datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds()


_TAKES: Mapping[EventType, Callable[[Metrics, _Run, _Task, Any], None]] = {
    EventType.INPUT: Metrics._begin,
    EventType.MODEL_START: Metrics._model_start,
    EventType.MODEL_COMPLETE: Metrics._model_complete,
    EventType.TOOL_START: Metrics._tool_start,
    EventType.TOOL_COMPLETE: Metrics._tool_end,
    EventType.TOOL_ERROR: Metrics._tool_end,
    EventType.WARNING: Metrics._warning,
    **dict.fromkeys(TERMINAL_TYPES, Metrics._end),
}
