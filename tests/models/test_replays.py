"""Recorded conversations: what came is answered, and the next request says what the recorded one said."""

import json
from pathlib import Path
from typing import Any

import pytest

from agentflow.messages import Message, ToolCall
from agentflow.models.base import ModelRequest
from agentflow.models.ollama_parsing import OllamaStreamParser
from agentflow.models.parsing import ChatStreamParser
from agentflow.models.providers import PRESETS
from agentflow.models.requests import chat_body, ollama_body, signed
from agentflow.testing.wire import ollama_refusal, refusal

CORPUS = Path(__file__).resolve().parents[2].parent / "shared" / "corpus"
pytestmark = pytest.mark.skipif(
    not CORPUS.is_dir(), reason="the corpus of recorded replies is not beside this repository"
)


def conversations() -> list[Any]:
    found = [json.loads(path.read_text("utf-8")) for path in sorted(CORPUS.glob("conv-*/conversation.json"))]
    return [pytest.param(conversation, id=conversation["name"]) for conversation in found]


def wire_text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content or ())


def replied(path: Path, provider: str) -> Message:
    """The assistant's message of a recorded turn."""
    parser = OllamaStreamParser() if path.suffix == ".ndjson" else ChatStreamParser()
    chunks = [*parser.feed(path.read_bytes()), *parser.finish()]
    end = chunks[-1]
    calls = tuple(
        ToolCall(call_id=call.id or f"made_{n}", name=call.name, raw_arguments=call.arguments)
        for n, call in enumerate(end.calls)
    )
    return Message(
        role="assistant",
        content="".join(chunk.text for chunk in chunks),
        reasoning="".join(chunk.reasoning for chunk in chunks),
        tool_calls=calls,
        provider_data=signed(end.provider_data, provider),
    )


def settled(message: dict[str, Any]) -> dict[str, Any]:
    """The message without the freedom that the protocols leave: absent, null and empty are one, arguments are data."""
    wire = message | {"content": wire_text(message.get("content"))}
    if message.get("tool_calls"):
        wire["tool_calls"] = [settled_call(call) for call in message["tool_calls"]]
    return {key: value for key, value in wire.items() if value}


def settled_call(call: dict[str, Any]) -> dict[str, Any]:
    arguments = call["function"]["arguments"]
    data = json.loads(arguments) if isinstance(arguments, str) else arguments
    kept = {"name": call["function"]["name"], "arguments": data}
    return kept | ({"id": call["id"]} if isinstance(arguments, str) else {})  # Ollama needs no ids and may have some


def sent(history: list[Message], provider: str) -> list[dict[str, Any]]:
    """The messages of the request for `history`, which a strict server of that kind accepts."""
    request, profile = ModelRequest(messages=tuple(history)), PRESETS[provider].profile
    if provider == "ollama":
        body = ollama_body(request, profile, model="m", provider=provider, stream=True)
        assert ollama_refusal(body) is None
    else:
        body = chat_body(request, profile, model="m", provider=provider, stream=True, strict={})
        assert refusal(body) is None
    return [settled(message) for message in body["messages"]]


@pytest.mark.parametrize("conversation", conversations())
def test_the_next_request_of_a_recorded_conversation_is_made_of_what_came(conversation):
    history: list[Message] = []
    for turn in conversation["turns"]:
        recorded = turn["request"]["messages"]
        given = recorded[len(history) :]  # what the system and the user said before this turn
        history += [Message(role=message["role"], content=wire_text(message["content"])) for message in given]
        assert sent(history, conversation["provider"]) == [settled(message) for message in recorded]
        if turn["kind"] == "error-in-stream":
            break  # that client made up what its history says of the failure
        history.append(replied(CORPUS / conversation["name"] / turn["file"], conversation["provider"]))
        history += [
            Message(role="tool", content=result["content"], call_id=result["tool_call_id"], name=result["name"])
            for result in turn.get("tool_results", ())
        ]
    else:
        assert history[-1].text == conversation["final_text"]
