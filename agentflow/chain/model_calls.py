"""The model calls of one chain: requests, replies, and further attempts after one that failed.

A failed attempt is made void (`rollback`) and made again: at the same model as its policy says, then at the next
model of the chain. Whether an error passes by itself is for `models.resilience` to say.
"""

import asyncio
import random
import uuid
from collections.abc import Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

from agentflow.chain.gates import Pass, Verdict
from agentflow.chain.reply import Reply, checked, checked_count
from agentflow.chain.work import Work, text_of
from agentflow.chain.writer import Action
from agentflow.errors import (
    AgentflowError,
    LimitError,
    ModelError,
    ModelProtocolError,
    ModelUnavailableError,
    RateLimitedError,
)
from agentflow.events import (
    AgentEvent,
    ModelCompleteEvent,
    ModelStartEvent,
    RollbackEvent,
    RollbackReason,
    State,
    plain,
)
from agentflow.memory import Window
from agentflow.messages import Message, ToolCall, Usage, clean_text
from agentflow.models.base import (
    CallRequest,
    ChatModel,
    ModelChunk,
    ModelRequest,
    estimate_message_tokens,
)
from agentflow.state import TOKENS_NOTICE, CallModel, Command, Notice, RunState, turn_messages

_NO_CALL = (0, 0, 0)
_ANSWER = 4  # a model's answer may take the fourth part of what it can read, unless `max_tokens` says
_FAIRNESS = 64  # chunks after which the loop is given to others, should the model never wait itself


class ModelCalls:
    """Calls the chain's models. One call is open at a time. `call_ids` are those in use in the whole run."""

    def __init__(self, work: Work, call_ids: set[str], chance: Callable[[], float] = random.random) -> None:
        self._work = work
        self._clock = work.runtime.clock
        self._chance = chance
        self._window: Window | None = None
        self._call_ids = call_ids
        self._position = 0  # in the chain of models: one that was given up stays so for this run
        self._failures: list[str] = []  # what was given up, and why
        self._tries = 0  # attempts at the current model in this round
        self._open_call = _NO_CALL  # iteration, attempt and estimated input tokens of the last call begun
        self.void = Usage()  # of attempts that failed

    def begin(self, window: Window) -> None:
        """What the conversation holds so far; call ids in it are not used again."""
        self._window = window
        self._call_ids.update(call.call_id for message in window.messages(()) for call in message.tool_calls)

    def open_usage(self, state: RunState) -> Usage:
        """An estimate of what a call that is being broken off has used."""
        chain = self._work.chain(state)
        iteration, attempt, input_tokens = self._open_call
        if chain.state is not State.AWAITING_MODEL or (chain.iteration, chain.round.attempt) != (iteration, attempt):
            return Usage()
        count = self._work.runtime.count_tokens
        output = count(chain.round.text) + count(chain.round.reasoning)
        return Usage(input_tokens=input_tokens, output_tokens=output, estimated=True)

    def give_up(self, state: RunState) -> None:
        """The chain is void: what its open call has used is not."""
        self.void += self.open_usage(state)

    def prepare(
        self, command: CallModel, state: RunState, void: Usage
    ) -> tuple[Sequence[AgentEvent | Command], Action | None]:
        """The `model_start` of a call, and the call itself; or the end, where the run has no tokens left for it.

        `void` is what attempts that failed have used. What open calls of other chains are expected to read counts as
        used, so that chains which work at the same time do not all take the same rest.
        """
        runtime, model = self._work.runtime, self._model
        if command.attempt == 1:
            self._tries = 0
        self._tries += 1
        tools, tool_tokens = runtime.describe_tools()
        system = (Message(role="system", content=runtime.instructions),) if runtime.instructions else ()
        turn = self._work.info.with_pictures(turn_messages(self._work.chain(state)))
        try:
            said = self._said(model, turn, tool_tokens + self._tokens_of(system))
        except LimitError as error:
            failure = error
            return (), lambda: self._work.fail(failure)
        request = ModelRequest(messages=(*system, *said), tools=tools, **self._options(command))
        estimate = tool_tokens + self._tokens_of(request.messages)
        budget = state.limits.token_budget
        if budget and estimate + _tokens_used(state, void, command.chain_id) > budget:
            return self._spent(command, budget)
        provider, name = self._work.names(model)
        start = ModelStartEvent(
            provider=provider,
            model=name,
            attempt=command.attempt,
            messages=len(request.messages),
            input_tokens_estimate=estimate,
            **self._work.header(command.iteration),
        )
        return (start,), partial(self._start, model, request, command, estimate)

    def _spent(self, command: CallModel, budget: int) -> tuple[Sequence[AgentEvent | Command], Action | None]:
        """The end of a chain that has no tokens left; in the middle of a round there is no answer to end it with."""
        if command.attempt == 1:
            return (Notice(command.chain_id, TOKENS_NOTICE.format(limit=budget), "budget"),), None
        spent = LimitError(
            f"the model's reply failed, and the run's budget of {budget} tokens leaves no room for another attempt"
        )
        return (), lambda: self._work.fail(spent)

    def _said(self, model: ChatModel, turn: tuple[Message, ...], taken: int) -> tuple[Message, ...]:
        """What fits of the conversation beside `taken` tokens, this turn last. Raises `LimitError` if not even that."""
        if self._window is None:
            return turn
        room = self._work.runtime.memory.room(model)
        if not room:
            return self._window.messages(turn)
        answer = self._work.runtime.request_options.get("max_tokens") or room // _ANSWER
        if room <= taken + answer:
            raise LimitError(
                f"instructions and tools take {taken} of the model's {room} tokens, which leaves no room for a "
                "message; use fewer tools, or a model with a larger context"
            )
        return self._window.messages(turn, room - taken - answer)

    def _tokens_of(self, messages: tuple[Message, ...]) -> int:
        return sum(estimate_message_tokens(message, self._work.runtime.count_tokens) for message in messages)

    def _options(self, command: CallModel) -> dict[str, Any]:
        options = dict(self._work.runtime.request_options)
        if command.iteration > 1 and options.get("tool_choice") not in (None, "none"):
            options["tool_choice"] = "auto"  # demanded of every round, a call would never be followed by an answer
        return options

    @property
    def _model(self) -> ChatModel:
        return self._work.info.models[self._position]

    def _start(self, model: ChatModel, request: ModelRequest, command: CallModel, estimate: int) -> None:
        self._open_call = (command.iteration, command.attempt, estimate)
        call = partial(self._call, model, request, command, estimate)
        context = self._work.info.trace.in_chat(command.chain_id, request)
        self._work.spawn(call, "model call", fail=self._work.fail, context=context)

    async def _call(self, model: ChatModel, request: ModelRequest, command: CallModel, estimate: int) -> None:
        reply = Reply(self._clock.monotonic())
        gate, passed = self._work.runtime.gate, None
        try:
            if gate is not None:
                provider, name = self._work.names(model)
                passed = await gate.enter(self._work.step("model", provider=provider, model=name, tokens=estimate))
                reply.began = self._clock.monotonic()  # the wait is not the model's
            async with aclosing(model.stream(request)) as chunks:
                await self._read(chunks, reply, command)
                if self._work.over:  # the cancel was lost: a model, or a library of its, caught it
                    return
                # Before the generator is closed: what its clean-up does is nothing to a reply that is whole.
                self._work.post(self._completed(reply, command, estimate))
                reply.whole = True
        except (ModelError, RateLimitedError) as error:
            if not reply.whole:
                self._leave(passed, reply, "failed" if error.retryable else "void")
                await self._failed(error, reply, command, estimate)

        finally:
            self._leave(passed, reply, "ok" if reply.whole else "void")

    def _leave(self, passed: Pass | None, reply: Reply, verdict: Verdict) -> None:
        """Tell the gate, if there is one, how the call went: it took as long as its first word did."""
        if passed is not None:
            first = self._clock.monotonic() if reply.first_chunk is None else reply.first_chunk
            tokens = None if reply.usage is None else reply.usage.input_tokens + reply.usage.output_tokens
            passed.leave(verdict, first - reply.began, tokens)

    async def _read(self, chunks: Any, reply: Reply, command: CallModel) -> None:
        number = 0
        async for chunk in chunks:
            if not isinstance(chunk, ModelChunk):
                raise ModelProtocolError(f"the model gave a {type(chunk).__name__}; it has to yield ModelChunk objects")
            self._take(chunk, reply, command)
            if reply.full:
                reply.calls, reply.finish_reason = [], "length"
                return
            number += 1
            if number % _FAIRNESS == 0 or self._work.behind:
                await self._work.ready()
            if self._work.over:
                return
        if reply.finish_reason == "error":  # clients say more; a model of the user's may say only this
            raise ModelError("the model ended its reply with the finish reason 'error'")

    def _take(self, chunk: ModelChunk, reply: Reply, command: CallModel) -> None:
        if reply.first_chunk is None:
            reply.first_chunk = self._clock.monotonic()
        if chunk.reasoning and (kept := reply.add(chunk.reasoning)):
            self._work.say((command.iteration, command.attempt, "reasoning"), kept, checked_count(chunk.count))
        text = chunk.text or chunk.refusal  # a refusal is what the user is told
        reply.refused = reply.refused or bool(chunk.refusal)
        if text and (kept := reply.add(text)):
            self._work.say((command.iteration, command.attempt, "answer"), kept, checked_count(chunk.count))
        if chunk.calls or chunk.finish_reason or chunk.usage or chunk.provider_data:
            reply.take(chunk)

    def _completed(self, reply: Reply, command: CallModel, estimate: int) -> ModelCompleteEvent:
        now = self._clock.monotonic()
        reply.usage = reply.usage or reply.estimated_usage(estimate, self._work.runtime.count_tokens)
        first = None if reply.first_chunk is None else round((reply.first_chunk - reply.began) * 1000, 3)
        return ModelCompleteEvent(
            finish_reason=reply.reason,
            tool_calls=tuple(map(self._tool_call, reply.calls)),
            usage=reply.usage,
            duration_ms=round((now - reply.began) * 1000, 3),
            first_chunk_ms=first,
            provider_data=plain(reply.provider_data),
            **self._work.header(command.iteration),
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

    # -- attempts ----------------------------------------------------------------------------------------

    async def _failed(
        self, error: ModelError | RateLimitedError, reply: Reply, command: CallModel, estimate: int
    ) -> None:
        """Go on to the next attempt, or end the run."""
        if self._work.over:
            return
        self._open_call = _NO_CALL
        if reply.usage is None:  # a provider that has said something has worked, and will have it paid
            reply.usage = reply.estimated_usage(estimate, self._work.runtime.count_tokens) if reply.texts else Usage()
        wait, reason = self._next_attempt(error)
        if reason is None and self._work.runtime.limits.degraded:
            self._degrade(error, reply, command, estimate)
            return
        self.void += reply.usage
        if reason is None:
            self._work.fail(_joined(error, self._failures))
            return
        data = {"attempt": command.attempt, "kind": error.kind, "wait_seconds": round(wait, 3), "next": reason}
        self._work.warn("model_attempt_failed", text_of(error), data)
        await asyncio.sleep(wait)
        if reason == "fallback":
            self._position, self._tries = self._position + 1, 0
        self._work.post(RollbackEvent(attempt=command.attempt, reason=reason, **self._work.header(command.iteration)))

    def _next_attempt(self, error: ModelError | RateLimitedError) -> tuple[float, RollbackReason | None]:
        wait = None
        if not isinstance(error, ModelUnavailableError | RateLimitedError):  # else it was not even asked
            wait = self._work.runtime.retries.decide(error, self._tries, random=self._chance)
        if wait is not None:
            return wait, "retry"
        self._failures.append(text_of(error))
        if self._position + 1 < len(self._work.info.models):
            return 0.0, "fallback"
        return 0.0, None

    def _degrade(self, error: ModelError | RateLimitedError, reply: Reply, command: CallModel, estimate: int) -> None:
        """Give up, with what has come as a reply that failed: an answer of the framework's own takes its place."""
        self._work.warn("degraded", "; ".join(self._failures), {"kind": error.kind, "attempt": command.attempt})
        reply.calls, reply.finish_reason = [], "error"
        self._work.post(self._completed(reply, command, estimate))


def _tokens_used(state: RunState, void: Usage, caller: str) -> int:
    """What was used, and what the open calls of other chains than `caller` are expected to read."""
    used = state.usage + void
    others = sum(chain.estimate for chain_id, chain in state.chains.items() if chain_id != caller)
    return used.input_tokens + used.output_tokens + others


def _joined(error: ModelError | RateLimitedError, failures: list[str]) -> AgentflowError:
    """The last error, with what the models before it had failed with."""
    if len(failures) < 2:
        return error
    joined = ModelError(f"every model failed: {'; '.join(failures)}")
    joined.kind, joined.retryable = error.kind, error.retryable
    return joined
