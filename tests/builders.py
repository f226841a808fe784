"""What several test modules build: events, folds of them, and a run that uses every kind of tool."""

import asyncio
from contextlib import asynccontextmanager

from agentflow import Agent
from agentflow.events import (
    TERMINAL_TYPES,
    ApprovalEvent,
    CancelledEvent,
    DeltaEvent,
    ErrorInfo,
    FailedEvent,
    FinalEvent,
    InputEvent,
    ModelCompleteEvent,
    ModelStartEvent,
    QuestionEvent,
    ResolvedEvent,
    RollbackEvent,
    RunError,
    StateEvent,
    SummaryEvent,
    ToolCompleteEvent,
    ToolDeltaEvent,
    ToolErrorEvent,
    ToolStartEvent,
    WarningEvent,
    stamp,
)
from agentflow.messages import ToolCall, Usage
from agentflow.models.openai import OpenAIModel
from agentflow.state import Limits, RunState, reduce, tool_records
from agentflow.testing import FakeProvider, ScriptedModel, assert_laws, text, tool_calls

COMMON = {"run_id": "r", "chain_id": "r", "session_id": "s", "path": ("agent",), "trace_id": "0" * 32}
USAGE = Usage(input_tokens=3, output_tokens=2)


def make(kind, iteration=1, **fields):
    return kind(**COMMON | {"iteration": iteration} | fields)


def begin(text="hello"):
    return make(InputEvent, 0, text=text)


def model_start(iteration=1, attempt=1):
    fields = {"provider": "p", "model": "m", "messages": 1, "input_tokens_estimate": 1}
    return make(ModelStartEvent, iteration, attempt=attempt, **fields)


def delta(text, iteration=1, attempt=1, **fields):
    return make(DeltaEvent, iteration, text=text, attempt=attempt, **fields)


def rollback(iteration=1, attempt=1, reason="retry"):
    return make(RollbackEvent, iteration, attempt=attempt, reason=reason)


def model_complete(*ids, iteration=1, finish_reason="stop"):
    calls = tuple(ToolCall(call_id=call_id, name="look", raw_arguments="{}") for call_id in ids)
    return make(
        ModelCompleteEvent, iteration, finish_reason=finish_reason, tool_calls=calls, usage=USAGE, duration_ms=1.0
    )


def tool_start(call_id, iteration=1, attempt=1):
    fields = {"call_id": call_id, "tool": "look", "arguments": {}, "raw_arguments": "{}"}
    return make(ToolStartEvent, iteration, attempt=attempt, **fields)


def tool_delta(call_id, data="piece", iteration=1, attempt=1):
    return make(ToolDeltaEvent, iteration, call_id=call_id, tool="look", attempt=attempt, data=data)


def tool_complete(call_id, iteration=1, attempt=1, result="[success]\nok"):
    fields = {"call_id": call_id, "tool": "look", "result": result, "duration_ms": 1.0}
    return make(ToolCompleteEvent, iteration, attempt=attempt, **fields)


def tool_error(call_id, iteration=1, attempt=1, status="error", will_retry=False):
    fields = {"call_id": call_id, "tool": "look", "result": f"[error: {status}]", "will_retry": will_retry}
    return make(
        ToolErrorEvent, iteration, attempt=attempt, status=status, error=ErrorInfo(kind="x", message=""), **fields
    )


def question(call_id, iteration=1):
    return make(QuestionEvent, iteration, question_id=call_id, text="Which?", options=("a", "b"))


def approval(call_id, iteration=1):
    return make(ApprovalEvent, iteration, call_id=call_id, tool="look", arguments={}, arguments_hash="0" * 64)


def resolved(target, decision, iteration=1, text=None):
    arguments = {} if decision == "amended" else None
    return make(ResolvedEvent, iteration, target=target, decision=decision, text=text, arguments=arguments)


def warning(iteration=1):
    return make(WarningEvent, iteration, code="x", message="m")


def output_invalid(iteration=1, message="Answer again."):
    return make(WarningEvent, iteration, code="output_invalid", message=message)


def summary(iteration=1):
    return make(
        SummaryEvent, iteration, turns=(1, 2), text="", confidence=1.0, used=True, tokens_before=2, tokens_after=1
    )


def final(state, reason="stop"):
    chain = state.root
    text = chain.round.text if chain.rounds else ""
    fields = {"text": text, "finish_reason": reason, "usage": chain.usage, "tools": tool_records(chain)}
    return make(FinalEvent, chain.iteration, iterations=chain.iteration, duration_ms=1.0, **fields)


def failed(iteration=1, kind="model"):
    return make(FailedEvent, iteration, error=RunError(kind=kind, message=""), usage=USAGE, duration_ms=1.0)


def cancelled(iteration=1, reason="user"):
    return make(CancelledEvent, iteration, reason=reason, usage=USAGE, duration_ms=1.0)


class Fold:
    """Folds events as the writer does, its `state` events included, but appends them to a list."""

    def __init__(self, **limits):
        self.state = RunState(run_id="r", limits=Limits(**limits))
        self.log = []
        self.commands = ()

    def add(self, event):
        """Fold one event; raises `InvalidTransition` and changes nothing if it is not allowed."""
        before = self.state.root.state
        self.state, self.commands = reduce(self.state, event)
        after = self.state.root.state
        fields = {"previous": before, "current": after, "reason": event.type.value}
        changes = [make(StateEvent, event.iteration, **fields)] if before is not after else []
        for item in (*changes, event) if event.type in TERMINAL_TYPES else (event, *changes):
            stamp(
                item, len(self.log) + 1, f"2026-01-01T00:00:{len(self.log) // 1000000:02}.{len(self.log) % 1000000:06}Z"
            )
            self.log.append(item)
        return self.commands

    def all(self, *events):
        for event in events:
            self.add(event)
        return self


def look(key: str) -> str:
    """Look something up, in a thread."""
    return f"value of {key}"


async def fetch(key: str) -> dict:
    """Fetch something, on the loop."""
    await asyncio.sleep(0)
    return {"key": key}


async def count(upto: int):
    """Stream numbers."""
    for number in range(upto):
        await asyncio.sleep(0)
        yield f"{number} "


TOOLS = (look, fetch, count)
ANSWER = "All of it is there, and more."


def mixed_run():
    """The provider's replies for a run of two rounds of parallel tools of every kind, then text."""
    return (
        tool_calls(("look", {"key": "a"}), ("fetch", {"key": "b"}), ("count", {"upto": 3}), content="Let me look. "),
        tool_calls(("count", {"upto": 2}), ("look", {"key": "c"})),
        text(ANSWER),
    )


@asynccontextmanager
async def served(*scripts, **options):
    """A provider that plays `scripts`, and an agent with the tools above that talks to it over real HTTP."""
    async with FakeProvider(*scripts) as provider:
        model = OpenAIModel("fake", base_url=provider.base_url, api_key="key")
        try:
            async with Agent(name="agent", model=model, tools=options.pop("tools", TOOLS), **options) as agent:
                yield provider, agent
        finally:
            await model.aclose()


async def run(*script, **options):
    """One run's log, which is lawful."""
    model = script[0] if callable(script[0]) else ScriptedModel(*script)
    async with Agent(model=model, tools=options.pop("tools", TOOLS), **options) as agent:
        log = [event async for event in agent.stream("hello")]
    assert_laws(log)
    return log


def of(log, *types):
    return [event for event in log if event.type in types]


def folded_text(log):
    """The text of the last round, as whoever folds the log has it."""
    state = RunState(run_id=log[0].run_id)
    for event in log:
        state, _ = reduce(state, event)
    return state.root.round.text


async def log_of(agent, run_id):
    """The whole log of a run that has ended."""
    return [event async for event in agent.follow(run_id)]


async def turns(count=20):
    """Let the loop go round."""
    for _ in range(count):
        await asyncio.sleep(0)
