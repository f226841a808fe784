"""Presets, and that each profile passes a provider that is strict about what the profile is for."""

import json
from collections.abc import Callable

import pytest

from agentflow import Agent
from agentflow.errors import ModelStatusError
from agentflow.messages import Message, ToolCall, ToolSpec
from agentflow.models.base import ModelChunk, ModelRequest
from agentflow.models.openai import OpenAIModel
from agentflow.models.providers import ALIASES, PREFIXES, PRESETS
from agentflow.settings import Profile
from agentflow.testing.provider import FakeProvider, RecordedRequest, Reply, status, tool_calls
from agentflow.testing.provider import text as answer

TOOL = ToolSpec(
    name="look",
    description="Looks.",
    parameters={
        "type": "object",
        "properties": {"a": {"type": "integer"}, "note": {"type": "string"}},
        "required": ["a"],
    },
)

# What a strict provider says of a request; None if it has no objection.
Rule = Callable[[dict], str | None]


def assistants(body: dict) -> list[dict]:
    return [message for message in body["messages"] if message["role"] == "assistant"]


def calling(body: dict) -> list[dict]:
    return [message for message in assistants(body) if "tool_calls" in message]


def ids(body: dict) -> list[str]:
    called = [call["id"] for message in calling(body) for call in message["tool_calls"]]
    return called + [message["tool_call_id"] for message in body["messages"] if message["role"] == "tool"]


def refuses(what: str) -> Rule:
    return lambda body: f"{what!r} is not known" if what in body else None


def refuses_in_messages(what: str) -> Rule:
    return lambda body: f"{what!r} is not known" if any(what in message for message in body["messages"]) else None


def null_content(body):
    return "content may not be null" if any(message["content"] is None for message in assistants(body)) else None


def missing_content(body):
    return "content is missing" if any("content" not in message for message in body["messages"]) else None


def empty_content(body):
    return "text must not be empty" if any(message["content"] == "" for message in calling(body)) else None


def reasoning_wanted(body):
    return next(("reasoning_content is missing" for said in calling(body) if "reasoning_content" not in said), None)


def reasoning_only_in_loop(body):
    last = max(at for at, message in enumerate(body["messages"]) if message["role"] == "user")
    for at, message in enumerate(body["messages"]):
        if at < last and "reasoning_content" in message:
            return "reasoning_content of an earlier turn"
        if at > last and message.get("tool_calls") and "reasoning_content" not in message:
            return "reasoning_content of this turn is missing"
    return None


def details_wanted(body):
    kept = [message.get("reasoning_details") for message in calling(body)]
    return None if all(details == [{"type": "t", "signature": "s="}] for details in kept) else "signature is missing"


def nine(body):
    return next((f"id {id!r} is not nine characters" for id in ids(body) if len(id) != 9 or not id.isalnum()), None)  # noqa: A001


def at_most_40(body):
    return next((f"id {id!r} is too long" for id in ids(body) if len(id) > 40), None)  # noqa: A001


def developer(body):
    return "no role developer" if any(message["role"] == "developer" for message in body["messages"]) else None


def strict_wanted(body):
    return None if all(tool["function"].get("strict") for tool in body["tools"]) else "tools must be strict"


def schema_refused(body):
    return "json_schema is not known" if body.get("response_format", {}).get("type") == "json_schema" else None


STRICT: dict[str, tuple[Profile, Rule]] = {
    "refuses null content": (Profile(empty_content="text"), null_content),
    "refuses missing content": (Profile(), missing_content),
    "refuses empty content": (Profile(), empty_content),
    "requires reasoning echoed": (Profile(reasoning_content="always"), reasoning_wanted),
    "refuses reasoning echoed": (Profile(reasoning_content="never"), refuses_in_messages("reasoning_content")),
    "reasoning only in the loop": (Profile(reasoning_content="loop"), reasoning_only_in_loop),
    "requires reasoning details": (Profile(), details_wanted),
    "refuses reasoning details": (Profile(reasoning_details=False), refuses_in_messages("reasoning_details")),
    "requires ids of nine": (Profile(call_ids="nine"), nine),
    "refuses long ids": (Profile(call_ids="short"), at_most_40),
    "refuses stream_options": (Profile(stream_options=False), refuses("stream_options")),
    "refuses temperature": (Profile(temperature=False), refuses("temperature")),
    "refuses parallel_tool_calls": (Profile(parallel_tool_calls=False), refuses("parallel_tool_calls")),
    "refuses max_tokens": (Profile(max_tokens_field="max_completion_tokens"), refuses("max_tokens")),
    "refuses seed": (Profile(seed_field="random_seed"), refuses("seed")),
    "refuses developer": (Profile(), developer),
    "requires strict tools": (Profile(strict_tools=True), strict_wanted),
    "refuses json_schema": (Profile(structured_output="json_object"), schema_refused),
    "refuses response_format": (Profile(structured_output="none"), refuses("response_format")),
}


def reasoned(number: int) -> bytes:
    delta = {"reasoning_content": f"thought {number}", "reasoning_details": [{"type": "t", "signature": "s="}]}
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": delta}]}).encode() + b"\n\n"


def plays(rule: Rule, refusals: list[str]):
    """Answers: two rounds of calls and a text for each user message, unless the rule objects."""

    def respond(request: RecordedRequest) -> Reply:
        fault = rule(request.body)
        if fault is not None:
            refusals.append(fault)
            return status(400, {"error": {"message": fault}})
        last = [message["role"] for message in request.body["messages"]][::-1]
        rounds = last.index("user") // 3
        if rounds == 2:
            return answer("done")
        reply = tool_calls(("look", '{"a":1,"note":null}'), ("look", {"a": 2}))
        number = len(request.body["messages"])
        longer = tuple(step.replace(b'"call_', b'"functions.look.%d.%s:' % (number, b"x" * 40)) for step in reply.steps)
        return Reply(steps=(reasoned(rounds), *longer))

    return respond


async def converse(model: OpenAIModel, prompts: int = 2) -> list[Message]:
    """What an agent does: tool rounds until there is a text, for each prompt."""
    history = [Message(role="developer", content="Be brief.")]
    for number in range(prompts):
        history.append(Message(role="user", content=f"question {number}"))
        while history[-1].role != "assistant" or history[-1].tool_calls:
            request = ModelRequest(
                messages=tuple(history),
                tools=(TOOL,),
                temperature=0.5,
                max_tokens=100,
                seed=1,
                parallel_tool_calls=True,
                response_format={"type": "object", "properties": {}},
            )
            chunks = [chunk async for chunk in model.stream(request)]
            history += said(chunks)
    return history


def said(chunks: list[ModelChunk]) -> list[Message]:
    end = chunks[-1]
    calls = tuple(ToolCall(call_id=call.id or "", name=call.name, raw_arguments=call.arguments) for call in end.calls)
    text = "".join(chunk.text for chunk in chunks)
    asked = Message(role="assistant", content=text, tool_calls=calls, provider_data=end.provider_data)
    return [asked, *(Message(role="tool", content="[success]", call_id=call.call_id, name="look") for call in calls)]


@pytest.mark.parametrize("name", STRICT)
async def test_the_same_conversation_passes_every_strict_provider_with_the_right_profile(name):
    profile, rule = STRICT[name]
    refusals: list[str] = []
    async with FakeProvider(respond=plays(rule, refusals)) as provider:
        model = OpenAIModel("fake", base_url=provider.base_url, api_key="k", profile=profile)
        history = await converse(model)
        await model.aclose()
    assert refusals == provider.refusals == []
    assert [message.role for message in history].count("tool") == 8
    assert history[-1].content == "done"
    calls = [call.raw_arguments for message in history for call in message.tool_calls]
    dropped = '{"a":1}' if profile.strict_tools else '{"a":1,"note":null}'
    assert calls == [dropped, '{"a": 2}'] * 4


@pytest.mark.parametrize("name", STRICT)
async def test_the_same_agent_passes_every_strict_provider(name):
    def look(a: int, note: str = "") -> str:
        """Look."""
        return f"saw {a}{note}"

    profile, rule = STRICT[name]
    refusals: list[str] = []
    async with FakeProvider(respond=plays(rule, refusals)) as provider:
        model = OpenAIModel("fake", base_url=provider.base_url, api_key="k", profile=profile)
        options = {"seed": 1, "parallel_tool_calls": True}
        async with Agent(model=model, tools=[look], temperature=0.5, max_tokens=100, model_options=options) as agent:
            for question in ("first", "second"):
                reply = await agent.chat(question, session_id="s")
                assert (reply.text, [record.status for record in reply.tools]) == ("done", ["success"] * 4)
        await model.aclose()
    assert refusals == provider.refusals == []


# With the defaults instead, all the other rules object.
FINE_BY_DEFAULT = {
    "refuses missing content",
    "refuses empty content",
    "requires reasoning details",
    "refuses developer",
}


@pytest.mark.parametrize("name", [name for name in STRICT if name not in FINE_BY_DEFAULT])
async def test_with_another_profile_the_strict_provider_refuses(name):
    wrong = Profile(strict_tools=False, reasoning_content="never") if "requires reasoning" in name else Profile()
    refusals: list[str] = []
    async with FakeProvider(respond=plays(STRICT[name][1], refusals)) as provider:
        model = OpenAIModel("fake", base_url=provider.base_url, api_key="k", profile=wrong)
        with pytest.raises(ModelStatusError, match="answered 400"):
            await converse(model)
        await model.aclose()
    assert len(refusals) == 1


@pytest.mark.parametrize("provider", PRESETS)
def test_a_preset_has_all_that_is_needed(provider):
    preset = PRESETS[provider]
    assert preset.base_url.startswith("https://" if preset.key_required else "http://127.0.0.1:")
    assert not preset.base_url.endswith("/")
    assert preset.key_variable.endswith("_API_KEY")
    assert preset.default_model or not preset.key_required
    assert all(url.startswith("https://") for url in preset.regions.values())


def test_other_names_mean_presets():
    assert set(PREFIXES.values()) <= set(PRESETS)
    assert {target.partition("/")[0] for target in ALIASES.values()} <= set(PRESETS)
    assert PRESETS["agnes"].regions["cn"] == "https://api.agnes-ai.cn/v1"


def test_every_field_of_a_profile_is_proven_by_a_strict_provider():
    proven = set().union(*(profile.model_fields_set for profile, _ in STRICT.values()))
    # The one is in test_requests; the other is no matter of requests, but of what is put into them.
    assert set(Profile.model_fields) - proven == {"developer_role", "context_tokens"}
