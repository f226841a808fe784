"""A whole agent against replies that break off: complete, or failed(truncated), and no tool of a call that was cut.

What is complete is read off the bytes here, by other means than the parser's.
"""

import json
import random
from pathlib import Path

import pytest

from agentflow import Agent, Settings, tool
from agentflow.events import FailedEvent, FinalEvent
from agentflow.models.openai import OpenAIModel
from agentflow.testing import FakeProvider, assert_laws, recorded, text, tool_calls

CORPUS = Path(__file__).resolve().parents[2].parent / "shared" / "corpus"
SETTINGS = Settings(model={"retries": {"attempts": 1}})
OWN = {
    "text": (text("Grüße, 世界 🙂, and so on", chunk=4).body, "Grüße, 世界 🙂, and so on", []),
    "calls": (
        tool_calls(("look", {"what": "a b"}), ("look", {"what": "世界"}), content="wait", chunk=3).body,
        "wait",
        [{"what": "a b"}, {"what": "世界"}],
    ),
    "without its end mark": (text("short", chunk=2).body.replace(b"data: [DONE]\n\n", b""), "short", []),
}


def points(body, seed):
    """The end of every frame, and one random place within each."""
    chance, at = random.Random(seed), 0
    for frame in body.replace(b"\r\n\r\n", b"\n\n\0\0").split(b"\n\n"):
        end = min(at + len(frame) + 2, len(body))
        if end - at > 1:
            yield chance.randrange(at + 1, end)
        yield end
        at = end


def is_complete(prefix):
    """Whether a finish reason of choice 0, or the end mark, stands in a whole event of `prefix`."""
    for line in prefix.replace(b"\r\n", b"\n").split(b"\n"):
        data = line.removeprefix(b"data:").strip()
        if data == b"[DONE]":
            return True
        try:
            choices = json.loads(data).get("choices") or []
        except (ValueError, AttributeError):
            continue
        if any(choice.get("index", 0) == 0 and choice.get("finish_reason") for choice in choices):
            return True
    return False


async def check(body, content, calls, *, names, errors=False, seed=0):
    ran = []

    def noting(name):
        @tool(name=name, parameters={"type": "object"})
        def note(**arguments) -> str:
            ran.append(arguments)
            return "noted"

        return note

    async with FakeProvider(strict=False) as provider:
        model = OpenAIModel("fake", base_url=provider.base_url)
        async with Agent(model=model, tools=[noting(name) for name in names], settings=SETTINGS) as agent:
            for end in points(body, seed):
                prefix, ran[:] = body[:end], []
                provider.scripts.extend([recorded(prefix), text("sorry")])
                log = [event async for event in agent.stream("go")]
                assert_laws(log)
                judge(log[-1], prefix, content, calls, ran, names=names, errors=errors)
                provider.scripts.clear()
        await model.aclose()


def judge(end, prefix, content, calls, ran, *, names, errors):
    if isinstance(end, FinalEvent):
        assert is_complete(prefix)
        assert end.text in ((content,) if not names else ("sorry", content))
        if ran:
            assert sorted(map(json.dumps, ran)) == sorted(map(json.dumps, calls))
    else:
        assert isinstance(end, FailedEvent)
        assert ran == []
        assert end.error.kind == "truncated" or (errors and end.error.kind == "status")
        assert end.error.kind != "truncated" or not is_complete(prefix)


@pytest.mark.parametrize("name", OWN)
async def test_an_own_reply_cut_anywhere_is_complete_or_truncated(name):
    body, content, calls = OWN[name]
    await check(body, content, calls, names=["look"] if calls else [])


def recordings():
    for path in sorted(CORPUS.glob("*.expected.json")):
        entry = json.loads(path.read_text("utf-8"))
        if entry["kind"] in ("chat-stream", "error-in-stream"):
            yield pytest.param(entry, id=entry["name"])


@pytest.mark.skipif(not CORPUS.is_dir(), reason="the corpus of recorded replies is not beside this repository")
@pytest.mark.parametrize("entry", list(recordings()))
async def test_a_recorded_reply_cut_anywhere_is_complete_or_truncated(entry):
    expected = entry["expected"]
    called = expected["tool_calls"]
    runnable = [
        call["parsed"] or {} for call in called if call["arguments_valid_json"] or not call["arguments"].strip()
    ]
    if expected["finish_reason"] in ("length", "content_filter"):
        runnable = []
    await check(
        (CORPUS / entry["file"]).read_bytes(),
        (expected["content"] or "") or (expected["refusal"] or ""),
        runnable,
        names=sorted({call["name"] for call in called}),
        errors=bool(expected.get("errors")),
        seed=entry["name"],
    )
