"""A run as the answer of OpenAI's chat completions: whole, as chunks, and errors. Pure.

It forwards what happened and decides nothing. What the agent does with its tools is not told: a client would take a
call for one that it is to make itself.
"""

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from agentflow.events import (
    AgentEvent,
    ApprovalEvent,
    CancelledEvent,
    DeltaEvent,
    FailedEvent,
    FinalEvent,
    FinishReason,
    QuestionEvent,
)
from agentflow.messages import Usage
from agentflow.transports.views import RunView

Told: TypeAlias = dict[str, Any]

_FINISH: Mapping[FinishReason, str] = {"length": "length", "max_iterations": "length", "budget": "length"}
_CODES: Mapping[str, str] = {"unauthorized": "invalid_api_key", "limit": "rate_limit_exceeded"}


class CompletionEncoder:
    """One completion; `model` is the name that the client has asked for, `created` in seconds since 1970 UTC."""

    def __init__(self, run_id: str, model: str, created: int, *, include_usage: bool = False) -> None:
        self._head = {"id": f"chatcmpl-{run_id}", "created": created, "model": model}
        self._include_usage = include_usage
        self._spoken: tuple[int, int] | None = None  # the round and attempt of the last text

    def whole(self, view: RunView) -> Told:
        """The body for a run that has its answer or waits for people."""
        message = {"role": "assistant", "content": answer(view), "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(view)}
        return {**self._head, "object": "chat.completion", "choices": [choice], "usage": _usage(view.usage)}

    def start(self) -> Iterator[Told]:
        """The first chunk."""
        yield self._chunk({"role": "assistant", "content": "", "refusal": None})

    def encode(self, event: AgentEvent) -> Iterator[Told]:
        """The root's texts as they come, those of different rounds apart. What was said cannot be taken back."""
        match event:
            case DeltaEvent(channel="answer") if event.chain_id == event.run_id:
                said = (event.iteration, event.attempt)
                apart = "\n\n" if self._spoken not in (None, said) else ""
                self._spoken = said
                yield self._chunk({"content": apart + event.text})
            case DeltaEvent() if event.chain_id == event.run_id:
                yield self._chunk({"reasoning_content": event.text})
            case FailedEvent():
                yield from self.error(event.error.kind, event.error.message)
            case CancelledEvent():
                yield from self.error("cancelled", f"the run was cancelled ({event.reason})")
            case _:
                pass

    def end(self, view: RunView) -> Iterator[Told]:
        """The last chunks; what a run waits for is told as text."""
        if view.error is not None:
            return
        if view.end is None:
            apart = "\n\n" if self._spoken is not None else ""
            yield self._chunk({"content": apart + _waits(view)})
        yield self._chunk({}, _finish(view))
        if self._include_usage:
            yield {**self._chunk({}), "choices": [], "usage": _usage(view.usage)}

    def error(self, kind: str, message: str) -> Iterator[Told]:
        """The end of a stream that tells why there is no answer."""
        yield error_body(500, kind, message)

    def _chunk(self, delta: Told, finish_reason: str | None = None) -> Told:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        usage = {"usage": None} if self._include_usage else {}
        return {**self._head, "object": "chat.completion.chunk", "choices": [choice], **usage}


def error_body(status: int, kind: str, message: str, param: str | None = None) -> Told:
    """The body of every answer that says no."""
    error_type = "invalid_request_error"
    if status == 429:
        error_type = "rate_limit_error"
    elif status >= 500:
        error_type = "server_error"
    return {"error": {"message": message, "type": error_type, "param": param, "code": _CODES.get(kind, kind)}}


def models(names: list[str]) -> Told:
    """The list of models."""
    return {"object": "list", "data": [model(name) for name in names]}


def model(name: str) -> Told:
    """One model; it was not made at any time."""
    return {"id": name, "object": "model", "created": 0, "owned_by": "agentflow"}


def answer(view: RunView) -> str:
    """The answer, or what there is and what the run waits for."""
    if view.end is not None:
        return view.text
    asked = any(isinstance(one, QuestionEvent) and one.question_id not in _calls(view) for one in view.pending)
    said = "" if asked else view.text  # a question that is a reply stands there as JSON
    return f"{said.rstrip()}\n\n{_waits(view)}" if said.strip() else _waits(view)


def _calls(view: RunView) -> set[str]:
    return {record.call_id for record in view.tools}


def _waits(view: RunView) -> str:
    return "\n\n".join(map(_asked, view.pending))


def _asked(asked: QuestionEvent | ApprovalEvent) -> str:
    if isinstance(asked, ApprovalEvent):
        return f"[{asked.tool} waits for approval, which cannot be given here]"
    return "\n".join((asked.text, *(f"- {option}" for option in asked.options)))


def _finish(view: RunView) -> str:
    return _FINISH.get(view.end.finish_reason, "stop") if isinstance(view.end, FinalEvent) else "stop"


def _usage(usage: Usage) -> Told:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }
