"""Record the golden logs beside this file: `python tests/data/make_golden.py`.

A log that was once committed is the promise that later versions fold it to the same state, so it is never made
anew: only what is missing is recorded. A run that no version can do yet is written by hand in `BY_HAND`.
"""

import asyncio
import sys
from pathlib import Path

import msgspec
from pydantic import BaseModel

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent))

from agentflow import Agent, ModelChunk  # noqa: E402  the path comes first
from agentflow.errors import ModelConnectionError, ModelRateLimitError, ModelStatusError  # noqa: E402
from agentflow.events import EventType, decode, encode  # noqa: E402
from agentflow.state import RunState, kept_messages, reduce  # noqa: E402
from agentflow.testing import ScriptedModel, VirtualTimeLoop, call  # noqa: E402
from tests import builders as b  # noqa: E402


class Weather(BaseModel):
    """The form of an answer."""

    degrees: int


MIXED = (
    [ModelChunk(reasoning="I look."), "Let me look. ", call("look", id="a", key="x"), call("fetch", id="b", key="y"),
     call("count", id="c", upto=3), call("missing", id="d"), call("look", id="e", key=5)],
    [call("count", id="a", upto=1)],
    "All of it is there: ä, 字, 😀.",
)  # fmt: skip

RUNS = {
    "text": ("Just an answer, in some words.",),
    "tools": MIXED,
    "failed": (["So far ", ModelStatusError("the provider has gone", status=500)],),
    "cut": ([ModelChunk(text="Half an ans"), ModelChunk(finish_reason="length")],),
    "cut_calls": ([call("look", id="a", key="x"), ModelChunk(finish_reason="length")], "Once more, then."),
    "max_iterations": ([call("look", id="a", key="x")], [call("look", id="b", key="y")]),
    "cancelled": ([call("look", id="a", key="x"), call("count", id="b", upto=99)],),
    "attempts": (["Wrong, ", ModelConnectionError("gone")], [call("look", id="a", key="x")],
                 [ModelRateLimitError("slow down", retry_after=2.0)], "Right."),
    "degraded": ([call("look", id="a", key="x")], ["Half an ", ModelStatusError("no such model", status=404)]),
    "corrected": ("It is cold.", '{"degrees": -5}'),
    "uncorrected": ("It is cold.", "Very cold."),
}  # fmt: skip
OPTIONS = {"degraded": {"degraded": "Not now."}, "corrected": {"output": Weather}, "uncorrected": {"output": Weather}}
ROUND = (b.begin("hello"), b.model_start(), b.delta("wrong "), b.delta("so", channel="reasoning"))
BY_HAND = {
    "rollback": (*ROUND, b.rollback(), b.model_start(attempt=2), b.delta("right", attempt=2), b.model_complete()),
    "suspended": (*ROUND, b.model_complete("c1", "c2"), b.approval("c1"), b.tool_start("c2"), b.tool_delta("c2"),
                  b.question("c2"), b.resolved("c2", "answered", text="blue"), b.tool_complete("c2"),
                  b.resolved("c1", "rejected", text="no"), b.tool_start("c1"), b.tool_error("c1", status="rejected"),
                  b.summary(), b.model_start(2), b.model_complete(iteration=2), b.question("q", 2)),
    "retried": (*ROUND, b.model_complete("c1"), b.tool_start("c1"), b.tool_error("c1", will_retry=True),
                b.tool_start("c1", attempt=2), b.warning(), b.tool_error("c1", attempt=2, status="timeout"),
                b.model_start(2), b.delta("It took too long.", 2), b.model_complete(iteration=2)),
}  # fmt: skip


async def record(name):
    """The log of a run with a scripted model, in virtual time."""
    options = {"max_iterations": 3 if name == "tools" else 2} | OPTIONS.get(name, {})
    async with Agent(name="golden", model=ScriptedModel(*RUNS[name]), tools=b.TOOLS, **options) as agent:
        chain = agent.stream("hello", session_id="golden", user_id="user", metadata={"page": 1})
        log = []
        async for event in chain:
            log.append(event)
            if name == "cancelled" and event.type is EventType.TOOL_DELTA:
                chain.cancel()
    return log


def by_hand(name):
    """The log of the events in `BY_HAND`, with an end where they leave the machine ready for one."""
    fold = b.Fold().all(*BY_HAND[name])
    if name != "suspended":
        fold.add(b.final(fold.state))
    return fold.log


def fold(log):
    """What a log amounts to, as JSON: the state, and the messages a session keeps of it."""
    state = RunState(run_id=log[0].run_id)
    for event in log:
        state, _ = reduce(state, event)
    return msgspec.json.decode(msgspec.json.encode({"state": state, "messages": kept_messages(state.root)}))


def main():
    for name in (*RUNS, *BY_HAND):
        path = HERE / f"{name}.ndjson"
        if path.exists():
            continue
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            log = runner.run(record(name)) if name in RUNS else by_hand(name)
        path.write_bytes(b"".join(encode(event) + b"\n" for event in log))
        lines = path.read_bytes().splitlines()
        whole = msgspec.json.format(msgspec.json.encode(fold([decode(line) for line in lines])), indent=1)
        path.with_suffix(".json").write_bytes(whole + b"\n")


if __name__ == "__main__":
    main()
