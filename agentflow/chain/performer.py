"""Performs the commands of one run, each in the place that knows how, for its root and for the chains below it.

It decides nothing: what follows from an event is in `state`, when it counts is up to the writer.
"""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import msgspec

from agentflow.chain.control import Control
from agentflow.chain.model_calls import ModelCalls
from agentflow.chain.nesting import AgentTool, answer_event, child_of, failure_event
from agentflow.chain.recovery import Past, left_to_do
from agentflow.chain.runtime import RunInfo, Runtime
from agentflow.chain.summaries import ask as ask_for_summary
from agentflow.chain.tool_calls import ToolCalls
from agentflow.chain.transforms import Transforms
from agentflow.chain.work import Work
from agentflow.chain.writer import Action, Ending, Writer, closing_events
from agentflow.errors import ConfigError, ModelOutputError
from agentflow.events import (
    MAX_EVENT_BYTES,
    AgentEvent,
    DeltaEvent,
    FinalEvent,
    InputEvent,
    QuestionEvent,
    State,
    SummaryEvent,
    ToolRecord,
    ToolStartEvent,
    WarningEvent,
    encode,
    plain,
)
from agentflow.memory import Window
from agentflow.messages import Usage
from agentflow.state import (
    TERMINAL_STATES,
    Ask,
    Call,
    CallModel,
    ChainState,
    Command,
    CompleteTool,
    FailChild,
    Finish,
    Notice,
    RefuseTool,
    RunState,
    RunTool,
    StopTool,
    Warn,
    tool_records,
)
from agentflow.stores.base import Session, Summary
from agentflow.streams import TaskOwner

Prepared: TypeAlias = tuple[Sequence[AgentEvent | Command], Action | None]

_AMENDED = "the call of this agent was given other arguments, and ended"


@dataclass(slots=True)
class _Part:
    """What one chain of the run consists of."""

    work: Work
    models: ModelCalls
    tools: ToolCalls
    transforms: tuple[Transforms, ...]
    began: float

    @property
    def runtime(self) -> Runtime:
        return self.work.runtime

    @property
    def info(self) -> RunInfo:
        return self.work.info


class Performer:
    """The commands of one run, and what its model and tool calls amount to at its end.

    `on_moved` is told, as (previous, current), when the root's state has changed.
    """

    def __init__(
        self,
        runtime: Runtime,
        info: RunInfo,
        *,
        on_closed: Callable[[], None],
        on_moved: Callable[[State, State], None],
    ) -> None:
        self._on_moved = on_moved
        self.tasks = TaskOwner()
        self._call_ids: set[str] = set()  # of the whole run: an id names one call
        self.writer = Writer(runtime, info, self, on_closed)
        self.control = Control(lambda: self.writer.state, lambda chain: self._parts[chain].runtime, self.header)
        self._root = self._make_part(runtime, info, ())
        self._parts = {info.chain_id: self._root}

    def _make_part(self, runtime: Runtime, info: RunInfo, above: tuple[Transforms, ...]) -> _Part:
        work = Work(runtime, info, self.writer, self.tasks)
        info.trace.know(info.chain_id, runtime.tools, info.models)
        return _Part(
            work=work,
            models=ModelCalls(work, self._call_ids),
            tools=ToolCalls(work, nest=self._nest, expire=self._expire),
            transforms=(Transforms(runtime.transforms), *above),
            began=runtime.clock.monotonic() if above else 0.0,
        )

    # -- the run as a whole ------------------------------------------------------------------------------

    def begin(self, session: Session, window: Window) -> None:
        """What the conversation holds so far; what is due to be summarised of it is, beside the run."""
        self._root.models.begin(window)
        memory, model = self._root.runtime.memory, self._root.info.models[0]
        turns = memory.due(session, window, model)
        if turns is not None:
            compressing = self._compress(session, turns)
            self._root.runtime.owner.spawn(compressing, name=f"agentflow memory of {session.key.session_id}")

    async def _compress(self, session: Session, turns: range) -> None:
        info = self._root.info
        with info.trace.memory("update_memory"):
            await self._root.runtime.memory.compress(
                session, turns, info.models[0], partial(ask_for_summary, self._root.work), self.tell_summary
            )

    def tell_summary(self, summary: Summary, before: int) -> bool:
        """Write down a summary of turns that had `before` tokens; whether the run goes on, so that it could be."""
        memory = self._root.runtime.memory
        event = SummaryEvent(
            turns=(summary.first, summary.last),
            text=summary.text,
            confidence=summary.confidence,
            used=summary.confidence >= memory.policy.confidence,
            tokens_before=before,
            tokens_after=memory.count(summary.text),
            **self._root.work.header(),
        )
        self.post(event)
        return not self.writer.ending

    def restore(self, past: Past) -> None:
        """Stand where another process has left the run. Raises `ConfigError` if an agent of it is no more."""
        self.writer.restore(past)
        for chain_id, chain in past.state.chains.items():
            self._call_ids.update(call.call.call_id for turn in chain.rounds for call in turn.calls)
            if chain.parent is not None and chain.state not in TERMINAL_STATES:
                self._restore_part(chain_id, chain, past)

    async def recover(self, past: Past) -> None:
        """Go on with the run, where it was left."""
        ended = [item for part in self._parts.values() for item in await part.tools.recover(past)]
        closed = {item.call_id for item in ended}
        tools = {chain_id: part.runtime.tools for chain_id, part in self._parts.items()}
        headers = {chain_id: part.info.header() for chain_id, part in self._parts.items()}
        for item in (*ended, *left_to_do(past, tools, headers, closed)):
            self.post(item)

    def _restore_part(self, chain_id: str, chain: ChainState, past: Past) -> None:
        above = self._parts[chain.parent or ""]
        call = past.state.chain(chain.parent or "").find(chain.call_id or "")
        tool = above.runtime.tools.get(call.call.name) if call is not None else None
        if not isinstance(tool, AgentTool):
            raise ConfigError(f"chain {chain_id!r} is of an agent that is no tool of {above.runtime.name!r} any more")
        runtime, info = child_of(above.runtime, above.info, tool, past.begun[chain_id].text)
        self._parts[chain_id] = self._make_part(runtime, replace(info, chain_id=chain_id), above.transforms)

    def post(self, item: AgentEvent | Command | Ending) -> None:
        """Hand something to the writer, behind the text of all chains that came before it."""
        for part in self._parts.values():
            part.work.flush()
        self.writer.post(item)

    def end(self, ending: Ending) -> None:
        """End the run now: stop what runs, keep the text that has come."""
        self.post(ending)
        self.tasks.cancel()

    def _expire(self, call_id: str) -> None:
        event = self.control.expire(call_id)
        if event is not None:
            self.post(event)

    def open(self, opening: Callable[[], Any]) -> None:
        """Begin the run with a task of its own."""
        self._root.work.spawn(opening, "opening", context=self._root.info.trace.in_run())

    def close(self) -> None:
        """The run is over: let go of everything; its tasks are asked to end."""
        self._close_parts(tuple(self._parts))

    # -- what the writer asks ----------------------------------------------------------------------------

    def warn(self, code: str, message: str, data: dict[str, Any]) -> None:
        """See `writer.Commands`."""
        self._root.work.warn(code, message, data)

    def header(self, chain_id: str) -> dict[str, Any]:
        """See `writer.Commands`."""
        return self._parts[chain_id].info.header()

    def transform(self, event: AgentEvent) -> AgentEvent:
        """See `writer.Commands`: an agent's own transforms first, then those of the agents that called it."""
        part = self._parts.get(event.chain_id)
        for transforms in part.transforms if part is not None else ():
            event = transforms.apply(event)
        return event

    def moved(self, previous: State, current: State) -> None:
        """See `writer.Commands`."""
        self._on_moved(previous, current)

    def open_usage(self, state: RunState) -> Usage:
        """See `writer.Commands`: also what attempts that are void have used."""
        return sum((part.models.open_usage(state) for part in self._parts.values()), self._void)

    @property
    def _void(self) -> Usage:
        return sum((part.models.void for part in self._parts.values()), Usage())

    def prepare(self, command: Command, state: RunState) -> Prepared:
        """See `writer.Commands`."""
        part = self._parts[command.chain_id]
        match command:
            case CallModel():
                return part.models.prepare(command, state, self._void)
            case RunTool():
                return part.tools.prepare(command, state)
            case RefuseTool():
                return part.tools.refuse(command, state), None
            case CompleteTool():
                return part.tools.complete(command, state), None
            case StopTool():
                return self._stop(part, command, state)
            case _:
                return self._prepare_text(part, command, state)

    def _prepare_text(
        self, part: _Part, command: Ask | Warn | Notice | FailChild | Finish, state: RunState
    ) -> Prepared:
        iteration = state.chain(command.chain_id).iteration
        header = part.work.header(iteration)
        match command:
            case Ask():
                question = QuestionEvent(
                    question_id=str(uuid.uuid4()), text=command.text, options=command.options, **header
                )
                return (question,), None
            case Warn():
                data = dict(command.data)
                return (WarningEvent(code=command.code, message=command.message, data=data, **header),), None
            case Notice():
                text = DeltaEvent(text=command.text, count=1, **part.work.header(iteration + 1))
                return (text, Finish(command.chain_id, command.finish_reason)), None
            case FailChild():
                return self._fail_child(part, command, state), None
            case Finish():
                return self._finish(part, command, state)

    # -- chains below the root ---------------------------------------------------------------------------

    def _nest(self, parent: Work, tool: AgentTool, start: ToolStartEvent) -> Sequence[AgentEvent]:
        """The events with which a call of an agent, and its chain, begin. Raises `ConfigError`."""
        runtime, info = child_of(parent.runtime, parent.info, tool, (start.arguments or {})["input"])
        self._parts[info.chain_id] = self._make_part(runtime, info, self._parts[parent.info.chain_id].transforms)
        text = InputEvent(
            text=info.text,
            user_id=info.session.user_id,
            model=info.model_name,
            metadata=plain(info.metadata),
            tools_hash=runtime.tools.hash,
            **info.header(),
        )
        return msgspec.structs.replace(start, child_chain_id=info.chain_id), text

    def _calling(self, part: _Part, state: RunState) -> tuple[Call, dict[str, Any]] | None:
        """The open call that this chain is, and what its closing event has in common; None if it is closed already."""
        chain = state.chain(part.info.chain_id)
        call = state.chain(chain.parent or "").find(chain.call_id or "")
        if chain.parent is None or call is None or call.child != part.info.chain_id or call.status == "closed":
            return None
        elapsed = round((part.runtime.clock.monotonic() - part.began) * 1000, 3)
        return call, self._parts[chain.parent].work.header(state.chain(chain.parent).iteration) | {
            "duration_ms": elapsed
        }

    def _fail_child(self, part: _Part, command: FailChild, state: RunState) -> Sequence[AgentEvent]:
        calling = self._calling(part, state)
        return () if calling is None else (failure_event(calling[0], command.kind, command.message, calling[1]),)

    def _stop(self, part: _Part, command: StopTool, state: RunState) -> Prepared:
        call = part.work.chain(state).find(command.call_id)
        if call is None or call.child is None:
            return (), lambda: part.tools.stop(command.call_id)
        below = state.below(call.child)
        events = [
            event
            for chain_id in below
            for open_call in state.chain(chain_id).open_calls()
            for event in closing_events(open_call, "amended", _AMENDED, self.header(chain_id), state.chain(chain_id))
        ]
        amended = closing_events(call, "amended", _AMENDED, part.info.header(), part.work.chain(state))[-1]
        for chain_id in below:
            self._parts[chain_id].models.give_up(state)
        return (*events, msgspec.structs.replace(amended, will_retry=True)), lambda: self._close_parts(below)

    def _close_parts(self, chain_ids: Sequence[str]) -> None:
        for chain_id in chain_ids:
            self._parts[chain_id].work.close()
            self._parts[chain_id].tools.close()

    # -- the end -----------------------------------------------------------------------------------------

    def _finish(self, part: _Part, command: Finish, state: RunState) -> Prepared:
        chain, output = state.chain(command.chain_id), part.runtime.output
        if output is not None and chain.round.finish_reason == "refusal":
            refusal = ModelOutputError(f"the model refused to answer: {chain.round.text[:500]}")
            return (), lambda: part.work.fail(refusal)
        fault = output.fault(chain.round.text) if output is not None and command.finish_reason == "stop" else None
        if fault is not None:
            if "output_invalid" in chain.warnings or chain.iteration >= chain.limits.max_iterations:
                error = ModelOutputError(f"the answer does not have the form that was asked for: {fault}")
                return (), lambda: part.work.fail(error)
            message = (
                f"Your answer does not have the form that was asked for. {fault} Answer again, with that JSON only."
            )
            return (Warn(command.chain_id, "output_invalid", message),), None
        if part is self._root:
            return (self._final(command, state),), None
        calling = self._calling(part, state)
        return () if calling is None else (answer_event(calling[0], chain, command.finish_reason, calling[1]),), None

    def _final(self, command: Finish, state: RunState) -> FinalEvent:
        chain = state.root
        event = FinalEvent(
            text=chain.round.text,
            finish_reason=command.finish_reason,
            usage=state.usage + self._void,
            iterations=chain.iteration,
            tools=tool_records(chain),
            duration_ms=self.writer.elapsed_ms(),
            **self._root.work.header(chain.iteration),
        )
        return _fit(event)


def _fit(event: FinalEvent) -> FinalEvent:
    """Cut the tools' results in the terminal event until it fits; the whole texts stand in their events."""
    room = 4096
    while len(encode(event)) > MAX_EVENT_BYTES and room:
        room //= 4
        tools = tuple(_cut(record, room) for record in event.tools)
        event = msgspec.structs.replace(event, tools=tools)
    while len(encode(event)) > MAX_EVENT_BYTES and event.tools:
        event = msgspec.structs.replace(event, tools=event.tools[: len(event.tools) // 2])
    return event


def _cut(record: ToolRecord, room: int) -> ToolRecord:
    arguments = record.arguments
    if arguments is not None and len(msgspec.json.encode(arguments)) > room:
        arguments = None
    return msgspec.structs.replace(record, result=record.result[:room], arguments=arguments)
