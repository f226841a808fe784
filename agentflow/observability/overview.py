"""The runs of a process as an operator sees them: those in flight, those that ended last, and totals. A pure fold.

What is shown of it is the dashboard's business, and over which window. It keeps rows and counts, never texts.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeAlias

from agentflow.events import (
    AgentEvent,
    ApprovalEvent,
    CancelledEvent,
    DeltaEvent,
    EventType,
    FailedEvent,
    FinalEvent,
    InputEvent,
    ModelCompleteEvent,
    ModelStartEvent,
    QuestionEvent,
    ResolvedEvent,
    State,
    StateEvent,
    TerminalEvent,
    ToolCompleteEvent,
    ToolDeltaEvent,
    ToolErrorEvent,
    ToolStartEvent,
    WarningEvent,
)

MAX_RUNS = 10_000  # in flight; what is more is counted and not shown
MAX_RECENT = 2_000  # runs, tool calls and model calls, that ended last
_TOTALS = (
    *("runs", "final", "failed", "cancelled", "tool_calls", "tool_failures", "model_calls"),
    *("input_tokens", "output_tokens"),  # of runs that have ended
)
_MAX_MARKS = 8  # codes of warnings that a run's row names

Row: TypeAlias = dict[str, Any]


@dataclass(slots=True)
class _Run:
    """A run in flight. `began` and `since`, from when its state is what it is, are RFC 3339; durations milliseconds."""

    run_id: str
    agent: str
    session_id: str
    began: str
    since: str
    user_id: str | None = None
    model: str = ""
    state: State = State.THINKING
    iteration: int = 0
    seq: int = 0
    last: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    waited_ms: float = 0.0
    first_chunk_ms: float | None = None
    model_began: str = ""  # of the root's current call
    tools: dict[str, str] = field(default_factory=dict)  # that run, by their calls' ids
    waits: set[str] = field(default_factory=set)  # approvals and questions that are open
    marks: dict[str, None] = field(default_factory=dict)

    def row(self) -> Row:
        """All of it, so that who has heard of the run from here on can go on counting."""
        return {
            "run_id": self.run_id,
            "agent": self.agent,
            "session_id": self.session_id,
            "user_id": self.user_id,
            "model": self.model,
            "state": self.state.value,
            "began": self.began,
            "since": self.since,
            "iteration": self.iteration,
            "seq": self.seq,
            "last": self.last,
            "tools": sorted(self.tools.values()),
            "waits": len(self.waits),
            "calls": list(self.tools.items()),
            "waiting": list(self.waits),
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "waited_ms": self.waited_ms,
            "first_chunk_ms": self.first_chunk_ms,
            "model_began": self.model_began,
            "marks": list(self.marks),
        }


class Overview:
    """What the events of all runs add up to; give it each event of a bus, in order. Deltas change nothing in it.

    A run counts from its first event that is seen; of one that was begun before, only from there.
    """

    def __init__(self, *, max_runs: int = MAX_RUNS, max_recent: int = MAX_RECENT) -> None:
        self._max_runs = max_runs
        self._runs: dict[str, _Run] = {}
        self._ended: deque[Row] = deque(maxlen=max_recent)
        self._tools: deque[Row] = deque(maxlen=max_recent)
        self._models: deque[Row] = deque(maxlen=max_recent)
        self.unseen = 0  # runs that were too many to be shown
        self.totals = dict.fromkeys(_TOTALS, 0)

    def see(self, event: AgentEvent) -> None:
        """An event that a log has accepted."""
        if isinstance(event, DeltaEvent | ToolDeltaEvent):
            return
        run = self._run(event)
        run.seq = event.seq
        if not isinstance(event, StateEvent):  # it follows what says more
            run.last = event.type.value
        take = _TAKES.get(event.type)
        if take is not None:
            take(self, run, event)

    def rows(self, is_alive: Callable[[str], bool]) -> list[Row]:
        """The runs in flight, the one that began first at the front; one that is not alive any more is dropped."""
        for run_id in [run_id for run_id in self._runs if not is_alive(run_id)]:
            del self._runs[run_id]
        return [run.row() for run in self._runs.values()]

    def recent(self) -> Mapping[str, list[Row]]:
        """The runs, the tool calls and the model calls that ended last, oldest first: a row each."""
        return {"runs": list(self._ended), "tools": list(self._tools), "models": list(self._models)}

    def _run(self, event: AgentEvent) -> _Run:
        run = self._runs.get(event.run_id)
        if run is None:
            if len(self._runs) >= self._max_runs:
                del self._runs[next(iter(self._runs))]
                self.unseen += 1
            run = _Run(event.run_id, event.path[0], event.session_id, event.ts, event.ts)
            self._runs[event.run_id] = run
            self.totals["runs"] += 1
        return run

    # -- what each kind of event changes -----------------------------------------------------------------

    def _input(self, run: _Run, event: InputEvent) -> None:
        if event.chain_id == event.run_id:
            run.user_id, run.model = event.user_id, event.model

    def _state(self, run: _Run, event: StateEvent) -> None:
        if event.chain_id != event.run_id:
            return
        if run.state is State.SUSPENDED:
            run.waited_ms += _milliseconds(run.since, event.ts)
        run.state, run.since = event.current, event.ts

    def _model_start(self, run: _Run, event: ModelStartEvent) -> None:
        run.model = event.model
        if event.chain_id == event.run_id:
            run.iteration, run.model_began = event.iteration, event.ts

    def _model_complete(self, run: _Run, event: ModelCompleteEvent) -> None:
        run.input_tokens += event.usage.input_tokens
        run.output_tokens += event.usage.output_tokens
        if run.first_chunk_ms is None and event.first_chunk_ms is not None and run.model_began:
            run.first_chunk_ms = round(_milliseconds(run.began, run.model_began) + event.first_chunk_ms, 3)
        self.totals["model_calls"] += 1
        self._models.append(
            {
                "ts": event.ts,
                "model": run.model,
                "agent": run.agent,
                "input_tokens": event.usage.input_tokens,
                "output_tokens": event.usage.output_tokens,
                "duration_ms": event.duration_ms,
            }
        )

    def _tool_start(self, run: _Run, event: ToolStartEvent) -> None:
        run.tools[event.call_id] = event.tool

    def _tool_end(self, run: _Run, event: ToolCompleteEvent | ToolErrorEvent) -> None:
        run.tools.pop(event.call_id, None)
        run.waits.discard(event.call_id)
        if isinstance(event, ToolErrorEvent) and event.will_retry:
            return
        status = event.status if isinstance(event, ToolErrorEvent) else "success"
        self.totals["tool_calls"] += 1
        self.totals["tool_failures"] += status != "success"
        self._tools.append(
            {
                "ts": event.ts,
                "tool": event.tool,
                "agent": run.agent,
                "status": status,
                "duration_ms": event.duration_ms,
                "attempt": event.attempt,
            }
        )

    def _asked(self, run: _Run, event: ApprovalEvent | QuestionEvent) -> None:
        run.waits.add(event.call_id if isinstance(event, ApprovalEvent) else event.question_id)

    def _resolved(self, run: _Run, event: ResolvedEvent) -> None:
        run.waits.discard(event.target)

    def _warning(self, run: _Run, event: WarningEvent) -> None:
        if len(run.marks) < _MAX_MARKS:
            run.marks[event.code] = None

    def _end(self, run: _Run, event: TerminalEvent) -> None:
        del self._runs[run.run_id]
        self.totals[event.type.value] += 1
        self.totals["input_tokens"] += event.usage.input_tokens
        self.totals["output_tokens"] += event.usage.output_tokens
        self._ended.append(
            {
                "ts": event.ts,
                "run_id": run.run_id,
                "agent": run.agent,
                "outcome": event.type.value,
                "reason": _reason(event),
                "duration_ms": event.duration_ms,
                "waited_ms": round(run.waited_ms, 3),
                "first_chunk_ms": run.first_chunk_ms,
                "input_tokens": event.usage.input_tokens,
                "output_tokens": event.usage.output_tokens,
            }
        )


_TAKES: Mapping[EventType, Callable[[Overview, _Run, Any], None]] = {
    EventType.INPUT: Overview._input,
    EventType.STATE: Overview._state,
    EventType.MODEL_START: Overview._model_start,
    EventType.MODEL_COMPLETE: Overview._model_complete,
    EventType.TOOL_START: Overview._tool_start,
    EventType.TOOL_COMPLETE: Overview._tool_end,
    EventType.TOOL_ERROR: Overview._tool_end,
    EventType.APPROVAL: Overview._asked,
    EventType.QUESTION: Overview._asked,
    EventType.RESOLVED: Overview._resolved,
    EventType.WARNING: Overview._warning,
    EventType.FINAL: Overview._end,
    EventType.FAILED: Overview._end,
    EventType.CANCELLED: Overview._end,
}


def _reason(event: TerminalEvent) -> str:
    """Why it ended as it did, as one of few words."""
    match event:
        case FinalEvent():
            return event.finish_reason
        case FailedEvent():
            return event.error.kind
        case CancelledEvent():
            return event.reason


def _milliseconds(begin: str, end: str) -> float:
    return (datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds() * 1000
