"""Runs whose process died: what their logs say, and how each goes on from there, once.

A call that was running may have had its effect, so it is not run again unless its tool is idempotent; a model call is
begun anew. It reads and decides; what it decides is written by the run's writer like all else.
"""

from collections.abc import AsyncIterator, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentflow.bus import EventBus
from agentflow.chain.runtime import RunInfo, Runtime
from agentflow.chain.tracing import new_trace
from agentflow.errors import InvalidTransition, StoreError
from agentflow.event_log import PAGE
from agentflow.events import (
    AgentEvent,
    ApprovalEvent,
    ErrorInfo,
    InputEvent,
    RollbackEvent,
    State,
    ToolErrorEvent,
    ToolStartEvent,
    encode,
)
from agentflow.models.base import ChatModel
from agentflow.state import Call, Command, Limits, RunState, RunTool, reduce, resume
from agentflow.stores.base import EventLog, RunRecord, SessionKey, Store
from agentflow.tools.registry import Tool, ToolRegistry

_CRASHED = "the process that ran this call died before it ended; it may or may not have had its effect"


@dataclass(slots=True)
class Past:
    """What the log of an open run says.

    `seq` and `ts` are those of its last event, `size` is that of all in bytes. `begun` are the inputs of its chains,
    `starts` the last `tool_start` of its calls, `expiries` when their approvals expire, by their ids.
    """

    state: RunState
    seq: int = 0
    ts: str = ""
    size: int = 0
    begun: dict[str, InputEvent] = field(default_factory=dict)
    starts: dict[str, ToolStartEvent] = field(default_factory=dict)
    expiries: dict[str, str] = field(default_factory=dict)

    @property
    def input(self) -> InputEvent | None:
        """The root's input; None for a run that had not begun."""
        return self.begun.get(self.state.run_id)

    def take(self, event: AgentEvent) -> None:
        """The next event of the log. Raises `StoreError` for one that cannot follow: the log is another version's."""
        try:
            self.state, _ = reduce(self.state, event)
        except InvalidTransition as error:
            message = f"run {self.state.run_id!r}: event {event.seq} of its log cannot be: {error}"
            raise StoreError(message) from error
        self.seq, self.ts = event.seq, event.ts
        self.size += len(encode(event))
        match event:
            case InputEvent():
                self.begun[event.chain_id] = event
            case ToolStartEvent():
                self.starts[event.call_id] = event
            case ApprovalEvent():
                self.expiries[event.call_id] = event.expires_at or ""
            case _:
                pass


async def open_runs(store: Store, run_id: str | None = None) -> AsyncIterator[RunRecord]:
    """The runs of a store that have not ended, the newest first; or that one of them."""
    if run_id is not None:
        one = await store.find_run(run_id)
        if one is not None and not one.ended:
            yield one
        return
    before: int | None = None
    while records := await store.list_runs(before=before, open_only=True):
        for record in records:
            yield record
        before = records[-1].number


async def first_input(runtime: Runtime, record: RunRecord) -> InputEvent | None:
    """The input of a run that is to go on; None for one that has nothing to go on with, which is put in order here.

    That is a run whose end was announced when its turn was stored, and one that died before its input.
    """
    run_id, store = record.run_id, runtime.store
    events = await store.read(run_id, 0, 1)
    if events and not record.closing:
        return events[0] if isinstance(events[0], InputEvent) else None
    token = await runtime.leases.take(run_id, lambda _: None)
    if token is None:
        return None
    try:
        left = [event for event in record.closing if event.seq > (await store.last(run_id) or 0)]
        if left:
            await store.append(run_id, left, token=token)
            runtime.bus.publish(left, lambda *_: None)
        elif record.session is not None and not events:
            await store.close_session(record.session, run_id, None, token=token)
    finally:
        await runtime.leases.give_back(run_id)
    return None


def info_of(begun: InputEvent, models: tuple[ChatModel, ...], bus: EventBus) -> RunInfo:
    """What made a run that run, as its log says; pictures stand in no log."""
    return RunInfo(
        run_id=begun.run_id,
        session=SessionKey(begun.session_id, begun.user_id),
        trace=new_trace(bus, begun.metadata, begun.trace_id),
        path=begun.path,
        text=begun.text,
        content=begun.text,
        models=models,
        model_name=begun.model,
        metadata=begun.metadata,
        chain_id=begun.run_id,
    )


async def read_past(log: EventLog, run_id: str, limits: Limits) -> Past:
    """Fold the log of a run; `limits` are those of its agents, of which the log says nothing."""
    past = Past(RunState(run_id=run_id, limits=limits))
    while events := await log.read(run_id, past.seq, PAGE):
        for event in events:
            past.take(event)
    return past


def left_to_do(
    past: Past, tools: Mapping[str, ToolRegistry], headers: Mapping[str, dict[str, Any]], closed: Container[str]
) -> Sequence[AgentEvent | Command]:
    """What has to be written for the run to go on; `tools` and `headers` are those of each open chain.

    Calls in `closed` have their end from elsewhere.
    """
    items: list[AgentEvent | Command] = []
    for chain_id in past.state.open_chains():
        chain = past.state.chain(chain_id)
        fields = headers[chain_id] | {"iteration": chain.iteration}
        if chain.state is State.THINKING:
            items += resume(past.state, chain_id)
        elif chain.state is State.AWAITING_MODEL:
            items.append(RollbackEvent(attempt=chain.round.attempt, reason="crashed", **fields))
        elif chain.state is State.EXECUTING_TOOLS:
            for call in (call for call in chain.open_calls() if call.call.call_id not in closed):
                items += _go_on(chain_id, call, tools[chain_id].get(call.call.name), fields)
    return items


def _go_on(chain_id: str, call: Call, tool: Tool | None, fields: dict[str, Any]) -> Sequence[AgentEvent | Command]:
    call_id, arguments = call.call.call_id, call.amended if call.amended is not None else call.arguments
    if call.status == "retrying":
        return (RunTool(chain_id, call_id, approved=True, arguments=arguments),)
    if call.status != "running" or call.child is not None:
        return ()
    again = tool is not None and tool.idempotent
    closed = ToolErrorEvent(
        call_id=call_id,
        tool=call.call.name,
        attempt=call.attempt,
        status="unknown_outcome",
        error=ErrorInfo(kind="unknown_outcome", message=_CRASHED),
        result=f"[error: unknown_outcome]\n{_CRASHED}",
        will_retry=again,
        **fields,
    )
    if not again or call.amended is not None:  # the machine itself begins an amended call again
        return (closed,)
    return closed, RunTool(chain_id, call_id, approved=True, arguments=arguments)
