"""The spans of one run, made from its accepted events.

What a span says is in `spans`, how it finds its parent in `segments`.
"""

import functools
import logging
import secrets
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from contextvars import Context as TaskContext
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec, TypeVar

from opentelemetry import context as current
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from agentflow.chain.tracing import SummaryCall
from agentflow.events import (
    AgentEvent,
    CancelledEvent,
    DeltaEvent,
    FailedEvent,
    FinalEvent,
    InputEvent,
    ModelCompleteEvent,
    ModelStartEvent,
    RollbackEvent,
    State,
    StateEvent,
    TerminalEvent,
    ToolCompleteEvent,
    ToolErrorEvent,
    ToolStartEvent,
    WarningEvent,
)
from agentflow.messages import Usage
from agentflow.models.base import ChatModel, ModelRequest
from agentflow.models.http import REQUEST_HEADERS
from agentflow.observability import semconv, spans
from agentflow.observability.segments import Family, Segment
from agentflow.state import TERMINAL_STATES
from agentflow.streams import Clock
from agentflow.tools.registry import ToolRegistry

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

W3C = TraceContextTextMapPropagator()


@dataclass(frozen=True, slots=True)
class Manner:
    """How runs are traced: after which release of the conventions, and whether with what was said."""

    tracer: Tracer
    names: semconv.Semconv = "0.1.0"
    content: bool = False


def _harmless(
    method: Callable[Concatenate["RunSpans", P], T],
) -> Callable[Concatenate["RunSpans", P], T | None]:
    """A method that the chain calls: what the telemetry raises is logged and goes no further."""

    @functools.wraps(method)
    def guarded(self: "RunSpans", /, *args: P.args, **kwargs: P.kwargs) -> T | None:
        try:
            return method(self, *args, **kwargs)
        except Exception:  # a sampler or a processor of the user's may raise anything
            logger.exception("a run goes on without its trace")
            return None

    return guarded


@dataclass(slots=True)
class _Chain:
    """One chain of a run. `said` is the beginning of what its model says, `failure` why its last attempt failed."""

    agent: Segment
    chat: Segment | None = None
    usage: Usage = field(default_factory=Usage)
    said: str = ""
    failure: str | None = None


class RunSpans:
    """The spans of one run in this process; see `chain.tracing.RunTrace`."""

    def __init__(
        self, manner: Manner, runs: MutableMapping[str, "RunSpans"], base: Context, earlier: str | None
    ) -> None:
        """`runs` are those whose events are wanted, by their ids; this one is among them while it is recorded."""
        self._manner = manner
        self._runs = runs
        self._family = Family(manner.tracer, base)
        self._trace_id = earlier or secrets.token_hex(16)  # the latter where nobody makes spans
        self._earlier = earlier
        self._run_id = ""
        self._about: spans.Attributes = {}
        self._clock: Clock | None = None
        self._at = 0  # the last time that something happened
        self._chains: dict[str, _Chain] = {}
        self._known: dict[str, tuple[ToolRegistry, Sequence[ChatModel]]] = {}  # what chains may call
        self._calls: dict[str, Segment] = {}
        self._children: dict[str, str] = {}  # chains by the ids of the calls that they are
        self._callers: dict[str, Segment] = {}  # those calls by their chains

    # -- what the chain asks -------------------------------------------------------------------------------

    @property
    def trace_id(self) -> str:
        """See `RunTrace`."""
        return self._trace_id

    @_harmless
    def begin(self, *, run_id: str, agent: str, session_id: str, model: str, clock: Clock) -> None:
        """See `RunTrace`. One that another process has begun has a span of its own once something happens in it."""
        self._run_id, self._clock = run_id, clock
        self._about = spans.of_agent(agent, session_id, run_id, run_id)
        attributes = self._about | {semconv.REQUEST_MODEL: model}
        past = self._past() if self._earlier is not None else None
        root = Segment(self._family, f"{semconv.INVOKE_AGENT} {agent}", attributes, None, past=past)
        self._chains[run_id] = _Chain(root)
        recording = past.trace_flags.sampled if past is not None else root.live(self._now()).is_recording()
        if root.last is not None and root.last.is_valid and self._earlier is None:
            self._trace_id = trace.format_trace_id(root.last.trace_id)
        if recording:
            self._runs[run_id] = self

    def _past(self) -> SpanContext:
        """The first span of a run that another process has begun, or one that stands for it if that made none."""
        first = trace.get_current_span(self._family.base).get_span_context()
        trace_id = int(self._trace_id, 16)
        if first.is_valid and first.trace_id == trace_id:
            return first
        span_id = int(self._run_id.replace("-", "")[:16], 16)
        return SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))

    def know(self, chain_id: str, tools: ToolRegistry, models: Sequence[ChatModel]) -> None:
        """See `RunTrace`."""
        self._known[chain_id] = (tools, models)

    def carried(self) -> dict[str, str]:
        """See `RunTrace`."""
        root = self._chains.get(self._run_id)
        return _injected(root.agent) if root is not None and root.agent.last is not None else {}

    def in_run(self) -> TaskContext | None:
        """See `RunTrace`."""
        return self._within(None)

    def in_chat(self, chain_id: str, request: ModelRequest) -> TaskContext | None:
        """See `RunTrace`. Requests over HTTP name the span of the call."""
        chain = self._chains.get(chain_id)
        return self._within_chat(chain.chat if chain is not None else None, request)

    @_harmless
    def _within_chat(self, chat: Segment | None, request: ModelRequest) -> TaskContext | None:
        context = self._within(chat)
        if context is not None and chat is not None and chat.span is not None:
            chat.span.set_attributes(spans.of_request(request))
            context.run(REQUEST_HEADERS.set, _injected(chat))
        return context

    def in_call(self, call_id: str) -> TaskContext | None:
        """See `RunTrace`."""
        return self._within(self._calls.get(call_id))

    def _within(self, segment: Segment | None) -> TaskContext | None:
        """A context for a task, in which the segment's span, else the run's, is the current one."""
        root = self._chains.get(self._run_id)
        if root is None or root.agent.last is None or not root.agent.last.is_valid:
            return None  # nobody makes spans
        context = copy_context()
        context.run(current.attach, (segment or root.agent).context)  # for good: the context is the task's own
        return context

    @contextmanager
    def memory(self, operation: str) -> Iterator[None]:
        """See `RunTrace`."""
        segment = self._remember(operation)
        error = None
        try:
            with _current(segment):
                yield
        except Exception as raised:
            error = type(raised).__name__
            raise
        finally:
            self._remembered(segment, {}, error)

    @_harmless
    def _remember(self, operation: str) -> Segment | None:
        root = self._chains.get(self._run_id)
        if root is None or self._run_id not in self._runs:
            return None
        return self._beside(root.agent.context, operation, self._about | {semconv.OPERATION: operation})

    def _beside(
        self, base: Context, name: str, attributes: Mapping[str, Any], kind: SpanKind = SpanKind.INTERNAL
    ) -> Segment:
        """One with a family of its own: what is done beside a run may end after it."""
        segment = Segment(Family(self._manner.tracer, base), name, attributes, None, kind=kind)
        segment.live(self._now())
        return segment

    @_harmless
    def _remembered(self, segment: Segment | None, attributes: Mapping[str, Any], error: str | None) -> None:
        if segment is not None:
            segment.end(self._now(), attributes, error)

    @contextmanager
    def summary_call(self, call: SummaryCall) -> Iterator[None]:
        """See `RunTrace`. Below the span that is the current one."""
        segment = self._ask_for_summary(call)
        token = REQUEST_HEADERS.set(_injected(segment)) if segment is not None else None
        try:
            with _current(segment):
                yield
        finally:
            if token is not None:
                REQUEST_HEADERS.reset(token)
            self._remembered(segment, spans.of_summary(call), None if call.error == "cancelled" else call.error)

    @_harmless
    def _ask_for_summary(self, call: SummaryCall) -> Segment | None:
        if not trace.get_current_span().is_recording():
            return None
        attributes = spans.of_summary_call(call)
        return self._beside(current.get_current(), f"{semconv.CHAT} {call.model}", attributes, SpanKind.CLIENT)

    @_harmless
    def close(self) -> None:
        """See `RunTrace`."""
        if self._runs.get(self._run_id) is self:  # else the run was taken over within this process
            del self._runs[self._run_id]
        if self._family.open:  # its end could not be written
            self._family.end(self._now(), "stopped", "store")

    def _now(self) -> int:
        return self._later(round(self._clock.wall() * 1_000_000) * 1000 if self._clock is not None else 0)

    def _later(self, at: int) -> int:
        """That time, or the last one if it comes before: a clock may be set back, and no span ends before it begins."""
        self._at = max(self._at, at)
        return self._at

    # -- what happens --------------------------------------------------------------------------------------

    def see(self, event: AgentEvent) -> None:
        """The next event of the run."""
        handle = _HANDLERS.get(type(event))
        if handle is not None:
            handle(self, event, self._later(spans.nanoseconds(event.ts)))
        elif isinstance(event, DeltaEvent) and self._manner.content and event.channel == "answer":
            chain = self._chain(event)
            chain.said = (chain.said + event.text[: spans.MAX_CONTENT])[: spans.MAX_CONTENT]

    def _chain(self, event: AgentEvent) -> _Chain:
        chain = self._chains.get(event.chain_id)
        if chain is None:
            name = event.path[-1]
            attributes = spans.of_agent(name, event.session_id, event.run_id, event.chain_id)
            # Of a chain that another process has begun it is not known which call it is.
            parent = self._chains.get(event.parent_chain_id or "") or self._chains[self._run_id]
            above = self._callers.get(event.chain_id) or parent.agent
            chain = _Chain(Segment(self._family, f"{semconv.INVOKE_AGENT} {name}", attributes, above))
            self._chains[event.chain_id] = chain
        return chain

    def _input(self, event: InputEvent, at: int) -> None:
        agent = self._chain(event).agent.live(at)
        if event.model:
            agent.set_attribute(semconv.REQUEST_MODEL, event.model)
        if self._manner.content:
            agent.set_attribute(semconv.INPUT_MESSAGES, spans.text_message("user", event.text))

    def _model_start(self, event: ModelStartEvent, at: int) -> None:
        chain = self._chain(event)
        chain.said = ""
        if chain.chat is None:
            _, models = self._known.get(event.chain_id, (None, ()))
            attributes, name = spans.of_chat(event, models), f"{semconv.CHAT} {event.model}"
            chain.chat = Segment(self._family, name, attributes, chain.agent, kind=SpanKind.CLIENT)
            if self._manner.names != "0.1.0":
                chain.agent.live(at).set_attribute(semconv.PROVIDER, attributes[semconv.PROVIDER])
        chain.chat.live(at)

    def _rollback(self, event: RollbackEvent, at: int) -> None:
        chain = self._chain(event)
        if chain.chat is None:
            return
        if event.reason == "fallback":
            self._end_chat(chain, at, {}, chain.failure or "error")
        else:
            chain.chat.note("rollback", at, attempt=event.attempt, reason=event.reason, kind=chain.failure or "")

    def _model_complete(self, event: ModelCompleteEvent, at: int) -> None:
        chain = self._chain(event)
        chain.usage += event.usage
        attributes = spans.of_reply(event)
        if self._manner.content:
            attributes[semconv.OUTPUT_MESSAGES] = spans.reply_message(chain.said, event)
        self._end_chat(chain, at, attributes, chain.failure if event.finish_reason == "error" else None)

    def _end_chat(self, chain: _Chain, at: int, attributes: Mapping[str, Any], error: str | None) -> None:
        chat, chain.chat, chain.failure = chain.chat, None, None
        if chat is not None:
            chat.end(at, attributes, error)

    def _warning(self, event: WarningEvent, at: int) -> None:
        chain = self._chain(event)
        if event.code in ("model_attempt_failed", "degraded") and "kind" in event.data:
            chain.failure = str(event.data["kind"])
        chain.agent.note("warning", at, code=event.code)

    def _tool_start(self, event: ToolStartEvent, at: int) -> None:
        call = self._calls.get(event.call_id)
        if call is None:
            tools, _ = self._known.get(event.chain_id, (None, ()))
            attributes = spans.of_tool(event, tools.get(event.tool) if tools is not None else None)
            if self._manner.content:
                attributes[semconv.TOOL_ARGUMENTS] = spans.arguments_of(event)
            name = f"{semconv.EXECUTE_TOOL} {spans.tool_name(event)}"
            call = self._calls[event.call_id] = Segment(self._family, name, attributes, self._chain(event).agent)
        call.live(at)
        if event.attempt > 1:
            call.note("attempt", at, attempt=event.attempt)
        if event.child_chain_id is not None:
            self._children[event.call_id] = event.child_chain_id
            self._callers[event.child_chain_id] = call

    def _tool_end(self, event: ToolCompleteEvent | ToolErrorEvent, at: int) -> None:
        error = spans.error_of(event)
        child = self._children.pop(event.call_id, None)
        if child is not None:
            self._end_child(child, at, error)
        if isinstance(event, ToolErrorEvent) and event.will_retry:
            call = self._calls.get(event.call_id)
            if call is not None:
                call.note("attempt_failed", at, attempt=event.attempt, kind=error or "")
            return
        call = self._calls.pop(event.call_id, None)
        if call is not None:
            attributes = spans.of_result(event)
            if self._manner.content:
                attributes[semconv.TOOL_RESULT] = spans.cut(event.result)
            call.end(at, attributes, error)

    def _end_child(self, chain_id: str, at: int, error: str | None) -> None:
        self._callers.pop(chain_id, None)
        self._known.pop(chain_id, None)
        chain = self._chains.pop(chain_id, None)
        if chain is not None:
            self._end_chat(chain, at, {}, error)
            outcome = "completed" if error is None else "failed"
            chain.agent.end(at, spans.of_usage(chain.usage) | {semconv.OUTCOME: outcome}, error)

    def _state(self, event: StateEvent, at: int) -> None:
        """A run that waits for people has no span, for nobody knows how long that takes."""
        if event.parent_chain_id is not None:
            return
        if event.current is State.SUSPENDED:
            self._family.end(at, "suspended")
        elif event.previous is State.SUSPENDED and event.current not in TERMINAL_STATES:
            self._chain(event).agent.live(at)

    def _end(self, event: TerminalEvent, at: int) -> None:
        root = self._chain(event)
        attributes, error = spans.of_end(event)
        if self._manner.content and isinstance(event, FinalEvent):
            attributes[semconv.OUTPUT_MESSAGES] = spans.text_message("assistant", event.text)
        agent = root.agent.live(at)  # a run that is ended while it waits has a last, short one
        agent.set_attributes(attributes)
        self._family.end(at, str(attributes[semconv.OUTCOME]), error)


_HANDLERS: dict[type[AgentEvent], Callable[[RunSpans, Any, int], None]] = {
    InputEvent: RunSpans._input,
    ModelStartEvent: RunSpans._model_start,
    RollbackEvent: RunSpans._rollback,
    ModelCompleteEvent: RunSpans._model_complete,
    WarningEvent: RunSpans._warning,
    ToolStartEvent: RunSpans._tool_start,
    ToolCompleteEvent: RunSpans._tool_end,
    ToolErrorEvent: RunSpans._tool_end,
    StateEvent: RunSpans._state,
    FinalEvent: RunSpans._end,
    FailedEvent: RunSpans._end,
    CancelledEvent: RunSpans._end,
}


@contextmanager
def _current(segment: Segment | None) -> Iterator[None]:
    """Its span is the current one in the block, which belongs to one task from its beginning to its end."""
    token = current.attach(segment.context) if segment is not None else None
    try:
        yield
    finally:
        if token is not None:
            current.detach(token)


def _injected(segment: Segment) -> dict[str, str]:
    carrier: dict[str, str] = {}
    W3C.inject(carrier, segment.context)
    return carrier
