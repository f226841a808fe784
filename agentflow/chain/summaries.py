"""The model calls of summaries: they pass the gate, have a span, and are told to whoever counts them.

They are made beside a run, which may be over before they are: no log and no run's `usage` has them. What is asked, and
what an answer is worth, is for `memory` to say.
"""

import asyncio
import logging
from contextlib import aclosing

from agentflow.chain.gates import Pass, Verdict
from agentflow.chain.reply import Reply
from agentflow.chain.tracing import SummaryCall
from agentflow.chain.work import Work
from agentflow.errors import AgentflowError, ModelError
from agentflow.memory.summary import REPLY_SCHEMA
from agentflow.messages import Message
from agentflow.models.base import ChatModel, ModelRequest, estimate_message_tokens

logger = logging.getLogger(__name__)

_PATIENCE = 300.0  # seconds for one reply of a model that summarises


async def ask(work: Work, model: ChatModel, messages: tuple[Message, ...]) -> str:
    """What the model answers, on behalf of the run that `work` belongs to.

    Raises `ModelError` for whatever the model raises and where it takes more than 300 s, and what `Gate.enter` does.
    A call that is cancelled is told too, with an estimate of what it has used.
    """
    runtime, (provider, name) = work.runtime, work.names(model)
    estimate = sum(estimate_message_tokens(message, runtime.count_tokens) for message in messages)
    passed: Pass | None = None
    if runtime.gate is not None:
        passed = await runtime.gate.enter(work.step("model", provider=provider, model=name, tokens=estimate))
    call = SummaryCall(
        agent=work.info.path[-1],
        session_id=work.info.session.session_id,
        provider=provider,
        model=name,
        request=ModelRequest(messages=messages, response_format=REPLY_SCHEMA),
    )
    reply = Reply(runtime.clock.monotonic())
    verdict: Verdict = "void"
    try:
        with work.info.trace.summary_call(call):
            try:
                await _read(model, call, reply, work)
            finally:
                _fill(call, reply, estimate, work)
        verdict = "ok"
    except AgentflowError as error:
        verdict = "failed" if error.retryable else "void"
        raise
    finally:
        if passed is not None:
            seconds = call.seconds if call.first_chunk is None else call.first_chunk
            passed.leave(verdict, seconds, call.usage.input_tokens + call.usage.output_tokens)
        _tell(work, call)
    return "".join(reply.texts)


async def _read(model: ChatModel, call: SummaryCall, reply: Reply, work: Work) -> None:
    call.error = "cancelled"  # unless it ends in another way
    try:
        async with asyncio.timeout(_PATIENCE), aclosing(model.stream(call.request)) as chunks:
            async for chunk in chunks:
                if reply.first_chunk is None:
                    reply.first_chunk = work.runtime.clock.monotonic()
                reply.take(chunk)
                reply.add(chunk.text)
                if reply.full:
                    break
    except AgentflowError as error:
        call.error = error.kind
        raise
    except Exception as error:  # a model of the user's may raise anything
        call.error = ModelError.kind
        raise ModelError(f"the model that summarises raised {error!r}") from error
    call.error = None


def _fill(call: SummaryCall, reply: Reply, estimate: int, work: Work) -> None:
    call.seconds = work.runtime.clock.monotonic() - reply.began
    call.first_chunk = None if reply.first_chunk is None else reply.first_chunk - reply.began
    call.finish_reason = reply.finish_reason
    call.usage = reply.usage or reply.estimated_usage(estimate, work.runtime.count_tokens)


def _tell(work: Work, call: SummaryCall) -> None:
    for told in tuple(work.runtime.summary_calls):
        try:
            told(call)
        except Exception:  # whoever counts must not cost a session its summary
            logger.exception("a model call for a summary was not counted")
