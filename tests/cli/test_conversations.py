"""Whole recorded conversations through the real command: its tools, its provider's replies, its final text."""

import json
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from agentflow.events import EventType
from agentflow.testing import FakeProvider, assert_laws, recorded, text

OWN = Path(__file__).resolve().parents[1] / "data" / "conversations"
CORPUS = Path(__file__).resolve().parents[2].parent / "shared" / "corpus"

ADMITS = "I could not do that."  # after calls of tools that are not ours no other answer is accepted at once

MODULE = """
import collections, json
from agentflow import tool

def made(name, description, parameters, results):
    @tool(name=name, description=description, parameters=parameters)
    def function(**arguments):
        return results.popleft()
    return function

RESULTS = collections.defaultdict(collections.deque)
for name, content in json.loads({results!r}):
    RESULTS[name].append(content)
TOOLS = [
    made(entry["name"], entry["description"], entry["parameters"], RESULTS[entry["name"]])
    for entry in json.loads({tools!r})
]
"""


class Conversation:
    def __init__(self, folder):
        self.recording = json.loads((folder / "conversation.json").read_text(encoding="utf-8"))
        self.folder = folder
        self.name = folder.name
        self.turns = self.recording["turns"]
        kinds = [turn["kind"] for turn in self.turns]
        self.of_ollama = any(kind.startswith("ollama") for kind in kinds)
        self.in_one = not (any("error" in kind for kind in kinds) or "final_tool_call" in self.recording)

    def reply(self, turn):
        return recorded(self.folder / turn["file"], turn.get("transport_chunks"))

    def write_tools(self, directory, turns):
        results = [(result["name"], result["content"]) for turn in turns for result in turn.get("tool_results") or ()]
        source = MODULE.format(results=json.dumps(results), tools=json.dumps(self.recording["tools"]))
        (directory / "recorded_tools.py").write_text(source, encoding="utf-8")

    @property
    def flags(self):
        return ("--json", "--system", "\n\n".join(self.recording["system"]), "--tools", "recorded_tools")


CONVERSATIONS = [
    Conversation(path.parent)
    for path in (*sorted(OWN.glob("*/conversation.json")), *sorted(CORPUS.glob("conv-*/conversation.json")))
]
IN_ONE = [one for one in CONVERSATIONS if one.in_one and not one.of_ollama]
BY_TURN = [
    pytest.param(one, turn, id=f"{one.name}-{turn['file']}")
    for one in CONVERSATIONS
    if not (one.in_one or one.of_ollama)
    for turn in one.turns
]


def calls_of(turn):
    return [(call["name"], json.loads(call["arguments"])) for call in turn["expected"]["tool_calls"]]


def started(events):
    return [(event.tool, event.arguments) for event in events if event.type == EventType.TOOL_START]


def runs_of(events):
    """The events of each run."""
    starts = [place for place, event in enumerate(events) if event.seq == 1]
    return [events[start:end] for start, end in pairwise([*starts, len(events)])]


def test_the_corpus_is_replayed_too():
    if not CORPUS.is_dir():
        pytest.skip("the corpus is not beside this repository: only the conversations in tests/data are replayed")
    assert any(one.folder.parent == CORPUS for one in IN_ONE)


def test_those_that_are_not_replayed_in_one_are_named(capsys):
    by_turn = [one.name for one in CONVERSATIONS if not one.in_one and not one.of_ollama]
    later = [one.name for one in CONVERSATIONS if one.of_ollama]
    with capsys.disabled():
        sys.stdout.write(f"\nconversations in one: {len(IN_ONE)}; per turn only: {', '.join(by_turn)}; ")
        sys.stdout.write(f"not over /chat/completions: {', '.join(later) or 'none'}\n")
    assert len(CONVERSATIONS) == len(IN_ONE) + len(by_turn) + len(later)


@pytest.mark.parametrize("conversation", IN_ONE, ids=lambda one: one.name)
async def test_a_conversation_ends_in_its_final_text(chat, tmp_path, conversation):
    recording = conversation.recording
    conversation.write_tools(tmp_path, conversation.turns)
    lines = [" ".join(message.split()) for message in recording["user"]]
    several = len(lines) > 1
    async with FakeProvider(*map(conversation.reply, conversation.turns)) as provider:
        done = await chat(
            provider,
            *(() if several else recording["user"]),
            *conversation.flags,
            model=recording["model"],
            stdin="\n".join(lines).encode() if several else b"",
        )
    assert (done.code, done.err, provider.refusals) == (0, "", [])
    assert len(provider.requests) == len(conversation.turns)
    runs = runs_of(done.events)
    for run in runs:
        assert_laws(run)
    assert [run[0].text for run in runs] == (lines if several else recording["user"])
    assert runs[-1][-1].text == recording["final_text"]
    assert started(done.events) == [call for turn in conversation.turns for call in calls_of(turn)]
    given = [result["content"] for turn in conversation.turns for result in turn.get("tool_results") or ()]
    sent = [message for message in provider.requests[-1].body["messages"] if message["role"] == "tool"]
    assert [message["content"] for message in sent] == [f"[success]\n{content}" for content in given]


@pytest.mark.parametrize(("conversation", "turn"), BY_TURN)
async def test_a_turn_alone_ends_as_it_should(chat, tmp_path, conversation, turn):
    conversation.write_tools(tmp_path, [turn])
    async with FakeProvider(conversation.reply(turn), text(ADMITS)) as provider:
        user = conversation.recording["user"][0]
        done = await chat(provider, user, *conversation.flags, model=conversation.recording["model"])
    assert_laws(done.events)
    assert provider.refusals == []
    assert started(done.events) == calls_of(turn)
    last = done.events[-1]
    if "error" in turn["kind"]:
        assert (done.code, last.type, last.error.kind) == (1, EventType.FAILED, "status")
        return
    assert (done.code, last.text) == (0, ADMITS if calls_of(turn) else turn["expected"]["content"])
    known = {entry["name"] for entry in conversation.recording["tools"]}
    for record in last.tools:
        given = [item["content"] for item in turn.get("tool_results") or () if item["name"] == record.tool]
        if record.tool in known and given:
            assert record.result == f"[success]\n{given[0]}"
        else:  # an output tool is no tool of ours, and what it would give was not recorded
            assert record.status == ("error" if record.tool in known else "unknown_tool")
