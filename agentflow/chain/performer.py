"""Performs the commands of one run: model calls and tool calls, and the events they cause.

It decides nothing: what follows from an event is in `state`, when it counts is up to the writer.
"""

import asyncio
import uuid
from collections.abc import Callable, Coroutine, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, TypeAlias

import msgspec

from agentflow.chain.reply import Reply, checked, pieces
from agentflow.chain.runtime import RunInfo, Runtime
from agentflow.chain.writer import Action, Ending, Writer, readable
from agentflow.errors import AgentflowError, ModelError, ToolArgumentsError
from agentflow.events import (
    MAX_EVENT_BYTES,
    AgentEvent,
    Channel,
    DeltaEvent,
    ErrorInfo,
    FinalEvent,
    ModelCompleteEvent,
    ModelStartEvent,
    RunError,
    State,
    ToolCompleteEvent,
    ToolDeltaEvent,
    ToolErrorEvent,
    ToolRecord,
    ToolStartEvent,
    ToolStatus,
    WarningEvent,
    encode,
    plain,
)
from agentflow.messages import Message, ToolCall, Usage, clean_text
from agentflow.models.base import (
    CallRequest,
    ModelChunk,
    ModelRequest,
    estimate_message_tokens,
    estimate_tokens,
)
from agentflow.operators import MicroBatch
from agentflow.state import (
    CallModel,
    Command,
    CompleteTool,
    Finish,
    Notice,
    RefuseTool,
    RunState,
    RunTool,
    tool_records,
    turn_messages,
)
from agentflow.streams import TaskOwner
from agentflow.tools.execution import ToolContext, ToolOutcome, execute
from agentflow.tools.registry import Tool
from agentflow.tools.resolvers import resolve

Prepared: TypeAlias = tuple[Sequence[AgentEvent | Command], Action | None]
BatchKey: TypeAlias = tuple[int, int, Channel]  # iteration, attempt, channel


class Performer:
    """Model and tool calls of one run. Its tasks end with the run; what they still bring then is dropped."""

    def __init__(self, runtime: Runtime, info: RunInfo, on_closed: Callable[[], None]) -> None:
        self._runtime = runtime
        self._info = info
        self._clock = runtime.clock
        self._history: tuple[Message, ...] = ()
        self._call_ids: set[str] = set()
        self._open_call = (0, 0, 0)  # iteration, attempt and estimated input tokens of the last model call begun
        self.tasks = TaskOwner()
        self.writer = Writer(runtime, info, self, on_closed)
        self._batch: MicroBatch[BatchKey] = MicroBatch(
            self._post_delta, clock=runtime.clock, window=runtime.window, max_bytes=runtime.max_batch_bytes
        )

    def begin(self, history: tuple[Message, ...]) -> None:
        """What the conversation holds so far; call ids in it are not used again."""
        self._history = history
        self._call_ids = {call.call_id for message in history for call in message.tool_calls}

    def post(self, item: AgentEvent | Ending) -> None:
        """Hand something to the writer, behind the text that came before it."""
        self._batch.close()
        self.writer.post(item)

    def close(self) -> None:
        """The run is over: no timer and no task of it goes on."""
        self._batch.close()
        self.tasks.cancel()

    def end(self, ending: Ending) -> None:
        """End the run now: stop what runs, keep the text that has come."""
        self.post(ending)
        self.tasks.cancel()

    def warn(self, code: str, message: str, data: dict[str, Any]) -> None:
        """Note something in the run's log."""
        self.post(WarningEvent(code=code, message=message, data=data, **self._header()))

    def open_usage(self, state: RunState) -> Usage:
        """See `writer.Commands`."""
        root = state.root
        iteration, attempt, input_tokens = self._open_call
        if root.state is not State.AWAITING_MODEL or (root.iteration, root.round.attempt) != (iteration, attempt):
            return Usage()
        output = estimate_tokens(root.round.text) + estimate_tokens(root.round.reasoning)
        return Usage(input_tokens=input_tokens, output_tokens=output, estimated=True)

    def _header(self, iteration: int | None = None) -> dict[str, Any]:
        current = self.writer.state.root.iteration if iteration is None else iteration
        return self._info.header() | {"iteration": current}

    def prepare(self, command: Command, state: RunState) -> Prepared:
        """See `writer.Commands`."""
        match command:
            case CallModel():
                return self._prepare_model(command, state)
            case RunTool():
                return self._prepare_tool(command, state)
            case RefuseTool():
                return self._refuse(command, state, command.status, command.kind, command.message), None
            case CompleteTool():
                return self._complete(command, state), None
            case Notice():
                text = DeltaEvent(text=command.text, count=1, **self._header(state.root.iteration + 1))
                return (text, Finish(command.chain_id, command.finish_reason)), None
            case Finish():
                return (self._final(command, state),), None

    # -- the model ---------------------------------------------------------------------------------------

    def _prepare_model(self, command: CallModel, state: RunState) -> Prepared:
        tools, tool_tokens = self._runtime.describe_tools()
        system = (Message(role="system", content=self._runtime.instructions),) if self._runtime.instructions else ()
        request = ModelRequest(
            messages=(*system, *self._history, *turn_messages(state.root)),
            tools=tools,
            temperature=self._runtime.temperature,
            max_tokens=self._runtime.max_tokens,
        )
        estimate = tool_tokens + sum(map(estimate_message_tokens, request.messages))
        start = ModelStartEvent(
            provider=getattr(self._info.model, "provider", "custom"),
            model=getattr(self._info.model, "name", self._info.model_name),
            attempt=command.attempt,
            messages=len(request.messages),
            input_tokens_estimate=estimate,
            **self._header(command.iteration),
        )
        return (start,), partial(self._start_model, request, command, estimate)

    def _start_model(self, request: ModelRequest, command: CallModel, estimate: int) -> None:
        self._open_call = (command.iteration, command.attempt, estimate)
        self._spawn(partial(self._call_model, request, command, estimate), "model call")

    async def _call_model(self, request: ModelRequest, command: CallModel, estimate: int) -> None:
        reply = Reply(self._clock.monotonic())
        try:
            async with aclosing(self._info.model.stream(request)) as chunks:
                async for chunk in chunks:
                    self._take(chunk, reply, command)
                    if reply.full:
                        reply.calls, reply.finish_reason = [], "length"
                        break
                    while self.writer.crowded:
                        await self.writer.accepted()
                    if self.writer.ending:  # the cancel was lost on the way: a model, or a library of its, caught it
                        return
        except ModelError as error:
            self._fail(error)
            return
        self.post(self._completed(reply, command, estimate))

    def _take(self, chunk: ModelChunk, reply: Reply, command: CallModel) -> None:
        if reply.first_chunk is None:
            reply.first_chunk = self._clock.monotonic()
        if chunk.reasoning:
            self._push((command.iteration, command.attempt, "reasoning"), chunk.reasoning, chunk.count, reply)
        text = chunk.text or chunk.refusal  # a refusal is what the user is told
        if text:
            self._push((command.iteration, command.attempt, "answer"), text, chunk.count, reply)
        if chunk.calls or chunk.finish_reason or chunk.usage or chunk.provider_data:
            reply.take(chunk)

    def _push(self, key: BatchKey, text: str, count: int, reply: Reply) -> None:
        kept = reply.add(text)
        if kept:
            self._batch.push(key, kept, count)

    def _completed(self, reply: Reply, command: CallModel, estimate: int) -> ModelCompleteEvent:
        now = self._clock.monotonic()
        first = None if reply.first_chunk is None else round((reply.first_chunk - reply.began) * 1000, 3)
        return ModelCompleteEvent(
            finish_reason=reply.finish_reason,
            tool_calls=tuple(map(self._tool_call, reply.calls)),
            usage=reply.usage or reply.estimated_usage(estimate),
            duration_ms=round((now - reply.began) * 1000, 3),
            first_chunk_ms=first,
            provider_data=plain(reply.provider_data),
            **self._header(command.iteration),
        )

    def _tool_call(self, request: CallRequest) -> ToolCall:
        """The call under an id that is unique in the session: some providers send none, or the same again."""
        given = clean_text(request.id) if request.id else None
        call_id = given or f"call_{uuid.uuid4().hex[:24]}"
        number = 1
        while call_id in self._call_ids:
            number += 1
            call_id = f"{given}-{number}"
        self._call_ids.add(call_id)
        return ToolCall(
            call_id=call_id,
            name=clean_text(checked(request.name, "tool name")),
            raw_arguments=clean_text(checked(request.arguments, "text of arguments")),
            provider_id=given,
        )

    def _post_delta(self, key: BatchKey, text: str, count: int) -> None:
        iteration, attempt, channel = key
        header = self._header(iteration)
        for position, piece in enumerate(pieces(text)):
            self.writer.post(
                DeltaEvent(text=piece, channel=channel, attempt=attempt, count=0 if position else count, **header)
            )

    # -- tools -------------------------------------------------------------------------------------------

    def _prepare_tool(self, command: RunTool, state: RunState) -> Prepared:
        call = self._call(command, state)
        tool = self._runtime.tools.get(call.name)
        if tool is None:
            names = ", ".join(sorted(other.name for other in self._runtime.tools)) or "none"
            message = f"there is no tool {call.name!r}; the tools are: {names}"
            return self._refuse(command, state, "unknown_tool", "not_found", message), None
        try:
            arguments = resolve(tool, call.raw_arguments)
        except ToolArgumentsError as error:
            return self._refuse(command, state, "invalid_arguments", error.kind, str(error)), None
        start = self._tool_start(command, state, arguments)
        return (start,), partial(self._start_tool, tool, arguments, start)

    def _call(self, command: RunTool | RefuseTool | CompleteTool, state: RunState) -> ToolCall:
        found = state.chain(command.chain_id).find(command.call_id)
        if found is None:
            raise RuntimeError(f"a command for the call {command.call_id!r}, which is not in this round")
        return found.call

    def _tool_start(
        self, command: RunTool | RefuseTool, state: RunState, arguments: dict[str, Any] | None
    ) -> ToolStartEvent:
        call = state.root.find(command.call_id)
        return ToolStartEvent(
            call_id=command.call_id,
            tool=self._call(command, state).name,
            arguments=arguments,
            raw_arguments=self._call(command, state).raw_arguments,
            attempt=(call.attempt if call is not None else 0) + 1,
            **self._header(state.root.iteration),
        )

    def _refuse(
        self, command: RunTool | RefuseTool, state: RunState, status: ToolStatus, kind: str, message: str
    ) -> Sequence[AgentEvent]:
        """A call that is not run is told as one that failed at once."""
        start = self._tool_start(command, state, readable(self._call(command, state).raw_arguments))
        error = ToolErrorEvent(
            call_id=start.call_id,
            tool=start.tool,
            attempt=start.attempt,
            status=status,
            error=ErrorInfo(kind=kind, message=message),
            result=f"[{status if status == 'rejected' else f'error: {kind}'}]\n{message}",
            **self._header(state.root.iteration),
        )
        return (start, error)

    def _complete(self, command: CompleteTool, state: RunState) -> Sequence[AgentEvent]:
        call = state.root.find(command.call_id)
        complete = ToolCompleteEvent(
            call_id=command.call_id,
            tool=self._call(command, state).name,
            attempt=call.attempt if call is not None else 1,
            result=f"[success]\n{command.result}",
            duration_ms=0.0,
            **self._header(state.root.iteration),
        )
        return (complete,)

    def _start_tool(self, tool: Tool, arguments: dict[str, Any], start: ToolStartEvent) -> None:
        self._spawn(partial(self._run_tool, tool, arguments, start), f"tool {tool.name}")

    async def _run_tool(self, tool: Tool, arguments: dict[str, Any], start: ToolStartEvent) -> None:
        context = ToolContext(
            run_id=self._info.run_id,
            session_id=self._info.session.session_id,
            user_id=self._info.session.user_id,
            call_id=start.call_id,
            tool=start.tool,
            attempt=start.attempt,
            metadata=self._info.metadata,
        )
        outcome = await execute(
            tool,
            arguments,
            context,
            on_delta=partial(self._tool_delta, start),
            pools=self._runtime.pools,
            ready=self._ready,
        )
        self.post(self._tool_closed(start, outcome))

    async def _ready(self) -> None:
        """Wait until the log has kept up with what was posted."""
        await asyncio.sleep(0)  # a source that never waits must not keep the loop for itself
        while self.writer.crowded:
            await self.writer.accepted()

    def _tool_delta(self, start: ToolStartEvent, data: Any) -> None:
        header = self._header(start.iteration)
        self.post(ToolDeltaEvent(call_id=start.call_id, tool=start.tool, attempt=start.attempt, data=data, **header))

    def _tool_closed(self, start: ToolStartEvent, outcome: ToolOutcome) -> AgentEvent:
        fields = self._header(start.iteration) | {
            "call_id": start.call_id,
            "tool": start.tool,
            "attempt": start.attempt,
            "result": outcome.result,
            "duration_ms": outcome.duration_ms,
        }
        if outcome.ok:
            return ToolCompleteEvent(truncated=outcome.truncated, **fields)
        error = outcome.error or ErrorInfo(kind="failed", message="the tool failed")
        return ToolErrorEvent(status=outcome.status or "error", error=error, **fields)

    # -- the end -----------------------------------------------------------------------------------------

    def _final(self, command: Finish, state: RunState) -> FinalEvent:
        chain = state.root
        event = FinalEvent(
            text=chain.round.text,
            finish_reason=command.finish_reason,
            usage=chain.usage,
            iterations=chain.iteration,
            tools=tool_records(chain),
            duration_ms=self.writer.elapsed_ms(),
            **self._header(chain.iteration),
        )
        return _fit(event)

    def _fail(self, error: AgentflowError) -> None:
        self.post(Ending(error=RunError(kind=error.kind, message=_text_of(error), retryable=error.retryable)))

    def _spawn(self, work: Callable[[], Coroutine[Any, Any, None]], what: str) -> None:
        self.tasks.spawn(self._guard(work, what), name=f"agentflow {what} of {self._info.run_id}")

    async def _guard(self, work: Callable[[], Coroutine[Any, Any, None]], what: str) -> None:
        """A run never waits for a task that has died: whatever ends one but a cancel ends the run.

        The coroutine is made here, since a task that is cancelled before its first step would never await it.
        """
        task = asyncio.current_task()
        try:
            await work()
        except asyncio.CancelledError:
            if task is not None and task.cancelling():
                raise
            self._fail(ModelError(f"the {what} cancelled itself"))  # nobody asked for it: a fault of its own
        except MemoryError as error:
            self._fail(AgentflowError(f"out of memory in the {what}: {error}"))
        except AgentflowError as error:
            self._fail(error)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001  a model of the user's may raise anything
            failure = ModelError(f"the {what} raised {type(error).__name__}: {_text_of(error)}")
            failure.__cause__ = error
            self._fail(failure)


_MAX_MESSAGE = 2000  # characters of an error that an event carries


def _text_of(error: BaseException) -> str:
    try:
        return clean_text(str(error))[:_MAX_MESSAGE]
    except Exception:  # noqa: BLE001  an exception's own __str__ may be the fault
        return ""


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
